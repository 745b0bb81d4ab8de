"""A channel of Kombu's virtual layer. What publishes or declares is done at once, in the caller's thread."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import partial
from typing import Any

from kombu.entity import TRANSIENT_DELIVERY_MODE
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.transport.virtual.base import queue_declare_ok_t
from kombu.utils.uuid import uuid

from celery_sticky.queues.sql.names import queue_number
from celery_sticky.queues.sql.publish import insert
from celery_sticky.transport.sql import deferred, queues
from celery_sticky.transport.sql.broadcasts import broadcast, newest
from celery_sticky.transport.sql.envelope import encode
from celery_sticky.transport.sql.qos import QoS
from celery_sticky.transport.sql.subscription import Subscription, Topic


class Channel(virtual.Channel):
    """See `kombu.transport.virtual.Channel`; `connection` is our `Transport`."""

    QoS = QoS
    supports_fanout = True
    do_restore = False
    body_encoding = None

    # -- publishing ----------------------------------------------------------------------------

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Publish a message. One to a topic exchange also goes to the temporary queues that listen, as a broadcast."""
        if not exchange or self.typeof(exchange).type != "topic":
            super().basic_publish(message, exchange, routing_key, **kwargs)
        elif message["properties"].get("delivery_mode") == TRANSIENT_DELIVERY_MODE:
            self.connection.events.try_to(partial(self._publish_topic, message, exchange, routing_key, **kwargs))
        else:
            self._publish_topic(message, exchange, routing_key, **kwargs)

    def _publish_topic(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        super().basic_publish(message, exchange, routing_key, **kwargs)
        self._put_fanout(exchange, message, routing_key)

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Leave text as it is."""
        if isinstance(body, bytes):
            return b64encode(body).decode(), "base64"
        return body, None

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        priority = self._get_message_priority(message)
        due = deferred.due_of(message.get("headers") or {})
        body = encode(message)
        with self.connection.writing() as database:
            if due is None:
                insert(database, queue, [body], priority)
            else:
                deferred.defer(database, queue_number(queue), due, priority, body)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str | None, **kwargs: Any) -> None:
        with self.connection.writing() as database:
            broadcast(database, exchange, routing_key or "", encode(message))

    # -- queues --------------------------------------------------------------------------------

    def queue_declare(self, queue: str | None = None, passive: bool = False, **options: Any) -> Any:
        """Declare a queue. Messages are counted only for a passive declaration: there may be millions."""
        if passive:
            return super().queue_declare(queue, passive, **options)
        name = queue or f"amq.gen-{uuid()}"
        self._new_queue(name, **options)
        return queue_declare_ok_t(name, 0, 0)

    def _new_queue(self, queue: str, **options: Any) -> None:
        arguments = options.get("arguments") or {}
        lasts = arguments.get("x-expires")
        if lasts is None and (options.get("auto_delete") or options.get("exclusive")):
            lasts = queues.LASTS * 1000
        if lasts is not None:
            self.connection.temporary.add(queue)
        with self.connection.sending() as database:
            queues.declare(database, queue, None if lasts is None else lasts / 1000)

    def prepare_queue_arguments(self, arguments: dict[str, Any] | None, **options: Any) -> Any:
        """Return the arguments of a declaration, with the options that are arguments."""
        return to_rabbitmq_queue_arguments(arguments, **options)

    def _has_queue(self, queue: str, **options: Any) -> bool:
        with self.connection.sending() as database:
            return queues.is_declared(database, queue)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        kind = self.typeof(exchange).type
        with self.connection.sending() as database:
            if kind == "fanout" or (kind == "topic" and queue in self.connection.temporary):
                topic = Topic(exchange, re.compile(pattern) if pattern else None, newest(database))
                self.connection.topics.setdefault(queue, []).append(topic)
            else:
                queues.bind(database, exchange, routing_key or "", pattern or "", queue)
                self.connection.bound.add(queue)

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """Return the bindings of an exchange, from all connections."""
        with self.connection.sending() as database:
            return [(key, pattern or None, name) for key, pattern, name in queues.bindings(database, exchange)]

    def _size(self, queue: str) -> int:
        with self.connection.sending() as database:
            return queues.size(database, queue)

    def _purge(self, queue: str) -> int:
        with self.connection.sending() as database:
            return queues.purge(database, queue)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Delete a queue, its bindings and its messages."""
        if if_empty and self._size(queue):
            return
        with self.connection.sending() as database:
            queues.delete(database, queue)
        self.state.queue_bindings_delete(queue)
        self.connection.topics.pop(queue, None)
        self.connection.bound.discard(queue)

    # -- consuming -----------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> None:
        """Consume from a queue."""
        super().basic_consume(queue, no_ack, *args, **kwargs)
        topics = tuple(self.connection.topics.get(queue, ()))
        self.connection.pump.subscribe(
            Subscription(
                queue,
                self.channel_id,
                no_ack,
                topics,
                claims=not topics or queue in self.connection.bound,
                temporary=queue in self.connection.temporary,
            )
        )

    def basic_cancel(self, consumer_tag: str) -> None:
        """Consume no more; what was delivered can still be settled."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None:
            self.connection.pump.unsubscribe(queue)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set how many messages may be delivered and not settled."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.connection.pump.limit(self.channel_id, prefetch_count)

    def settle(self, delivery_tag: str, *, back: bool) -> None:
        """Delete a message that was delivered, or give it back. A closed channel has given everything back."""
        if (connection := self.connection) is not None:
            connection.pump.settle(delivery_tag, back=back)

    def give_back(self) -> None:
        """Give back everything that was delivered and not settled."""
        if (connection := self.connection) is not None:
            connection.pump.release(self.channel_id)

    def close(self) -> None:
        """Cancel all consumers, and give back what is not settled."""
        if not self.closed and self._qos is not None:
            for consumer in list(self._consumers):
                self.basic_cancel(consumer)
            self.give_back()
            self.connection.pump.end(self.channel_id)
        super().close()

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        raise NotImplementedError("a database as the broker has no basic_get: consume from the queue")
