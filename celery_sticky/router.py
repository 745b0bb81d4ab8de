"""Sends each keyed task to the queue of its key's slot, and leaves every other task alone.

Every publish of an app calls `app.amqp.router.route(...)` (celery/app/base.py, `send_task`), and publishes the message
with the options that this returns. Our router wraps the app's own router there. An entry in `task_routes` would not
do: the caller's options override it, a retry ignores it, its headers are lost if the caller passes some, and users
replace `task_routes`. (Celery 5.5 to 5.7.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jump
from celery.app.task import Context
from kombu.entity import Exchange, Queue

from celery_sticky.drivers import Driver, broker_driver, known_connection
from celery_sticky.drivers.needs import check_moves
from celery_sticky.errors import InvalidKey, RoutingConflict
from celery_sticky.keyed import KeyedTasks, KeySpec
from celery_sticky.keys import (
    DEFAULT_KEYSPACE,
    check_keyspace,
    hash_key,
    is_slot_queue,
    key_text,
    queue_name,
    slot_of_queue,
)
from celery_sticky.keyspace import Keyspace
from celery_sticky.message import KEY_HEADER, KEYSPACE_HEADER, STAMP_HEADER, Stamp
from celery_sticky.settings import Settings
from celery_sticky.slots import Slot

_NOT_GIVEN: Final = ("not given",)
_DESTINATION: Final = ("queue", "exchange", "exchange_type", "routing_key")

# Tasks that run another task's body over many items -> function from an item to that task's arguments.
_MAPS: Final[Mapping[str, Callable[[Any], Sequence[Any]]]] = {
    "celery.map": lambda item: (item,),
    "celery.starmap": lambda item: item,
}


class StickyRouter:
    """A router that wraps another one: it addresses keyed tasks and passes all other tasks on."""

    def __init__(
        self,
        inner: Any,
        tasks: KeyedTasks,
        settings: Callable[[], Settings],
        clock: Callable[[], float] = time.time,
        placement_of: Callable[[Keyspace, str], Slot] | None = None,
        connect: Callable[[], Any] | None = None,
    ) -> None:
        """Wrap `inner`. `connect` returns a connection to the broker; it is checked before the first keyed message."""
        self._placement_of = placement_of
        self._inner = inner
        self._tasks = tasks
        self._settings = settings
        self._clock = clock
        self._connect, self._checked = connect, False
        self._driver: Driver | None = None
        self._moving: set[str] = set()
        """The placed keyspaces whose messages the broker can move."""
        self._queues: dict[tuple[str, Slot], tuple[Any, Sequence[Any]]] = {}
        """Each queue, and what Kombu must declare before a message is published to it."""
        self._exchange = Exchange("", type="direct")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def route(
        self,
        options: dict[str, Any],
        name: str,
        args: Sequence[Any] | None = _NOT_GIVEN,
        kwargs: Mapping[str, Any] | None = None,
        task_type: Any = None,
    ) -> dict[str, Any]:
        """Return the options with which a message is published.

        Raises:
            InvalidKey: the task's key is missing or invalid.
            InvalidTask: the task's `key`, `keyspace` or `serial` is invalid.
            InvalidSettings: the app's broker is a list of servers, has no slot queues, or lacks what they need.
            RoutingConflict: the task is keyed, and the caller or the task itself names another destination.
            StoreUnavailable, NoWorker, NotPinned, AssignmentFailed: the task belongs to a placed keyspace, and the
                lookup of the key's placement failed.
        """
        if args is _NOT_GIVEN:
            # A chord without native support asks for the queue of its unlocking task without giving arguments; that
            # task has no key (celery/backends/base.py, `fallback_chord_unlock`).
            return self._unkeyed(options, name, (), kwargs, task_type)
        headers = options.get("headers") or {}
        called = name if task_type is None else task_type.name
        if called in _MAPS:
            spec, key = self._key_of_map(called, kwargs or {}, headers)
        else:
            spec = self._tasks.spec_for(name) if task_type is None else self._tasks.spec_of(task_type)
            key = self._key_of(spec, called, args, kwargs, headers)
        if key is None:
            return self._unkeyed(options, name, args, kwargs, task_type)
        keyspace = self._keyspace_of(spec, headers)
        inherited = self._inherited(options, name, args, kwargs, task_type)
        return self._address(inherited, called, key, keyspace, headers)

    def _unkeyed(self, *call: Any) -> dict[str, Any]:
        routed: dict[str, Any] = self._inner.route(*call)
        return routed

    def _key_of(
        self,
        spec: KeySpec | None,
        called: str,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        headers: Mapping[str, Any],
    ) -> str | None:
        if KEY_HEADER in headers:
            return _explicit_key(called, headers)
        return None if spec is None else spec.key_text(args, kwargs)

    def _key_of_map(
        self, called: str, kwargs: Mapping[str, Any], headers: Mapping[str, Any]
    ) -> tuple[KeySpec | None, str | None]:
        """Return spec and key of a map over a keyed task. It is one message, so all its items must have one key."""
        mapped = kwargs.get("task")
        spec = self._tasks.spec_for(mapped["task"]) if isinstance(mapped, Mapping) and "task" in mapped else None
        if KEY_HEADER in headers:
            return spec, _explicit_key(called, headers)
        if spec is None:
            return None, None
        keys = {spec.key_text(_MAPS[called](item), {}) for item in kwargs.get("it") or ()}
        if len(keys) > 1:
            raise InvalidKey(
                f"task {spec.task!r}: a map or chunk is one message and can have one key only, "
                f"but its items have {len(keys)} keys; use a group"
            )
        return spec, keys.pop() if keys else None

    def _keyspace_of(self, spec: KeySpec | None, headers: Mapping[str, Any]) -> str:
        if KEYSPACE_HEADER in headers:
            return check_keyspace(headers[KEYSPACE_HEADER])
        return DEFAULT_KEYSPACE if spec is None else spec.keyspace

    def _inherited(self, options: dict[str, Any], name: str, *call: Any) -> dict[str, Any]:
        """Add the options that `task_routes` has for the task, except the destination.

        A catch-all route names a queue for every task, so a destination there must not count as a conflict.
        """
        if not self._inner.routes:
            return options
        args, kwargs, task_type = call
        found = self._inner.lookup_route(name, args, kwargs or {}, options, task_type)
        if not isinstance(found, Mapping):
            return options
        kept = {option: value for option, value in found.items() if option not in _DESTINATION}
        return kept | {option: value for option, value in options.items() if value is not None}

    def _address(
        self, options: dict[str, Any], called: str, key: str, keyspace: str, headers: Mapping[str, Any]
    ) -> dict[str, Any]:
        settings = self._settings()
        self._check_broker()
        slots = settings.slots_of(keyspace)
        slot = jump.hash(hash_key(key.encode()), slots)
        place: Slot = slot
        if (
            settings.placed
            and (placed := settings.placed_keyspace(keyspace)) is not None
            and self._placement_of is not None
        ):
            self._check_moves(keyspace)
            place = _slot_given(options, keyspace, settings.key_prefix) or self._placement_of(placed, key)
        queue, declared = self._queues.get((keyspace, place)) or self._make_queue(keyspace, place, settings)
        _refuse_other_destination(options, called, queue.name, settings.key_prefix)
        stamp = Stamp(key, keyspace, slot, slots, self._clock())
        written = {**headers, STAMP_HEADER: stamp.to_header()}
        if KEY_HEADER in headers:
            written[KEY_HEADER] = key  # as text, so that a retry reads the same key back from JSON
        addressed = {option: value for option, value in options.items() if option not in _DESTINATION}
        return {"declare": [*declared], **addressed, "queue": queue, "headers": written}

    def _check_broker(self) -> None:
        if not self._checked and self._connect is not None:
            self._driver = broker_driver(known_connection(self._connect))
        self._checked = True

    def _check_moves(self, keyspace: str) -> None:
        if keyspace not in self._moving and self._driver is not None and self._connect is not None:
            check_moves(self._driver, self._connect(), keyspace)
        self._moving.add(keyspace)

    def _make_queue(self, keyspace: str, slot: Slot, settings: Settings) -> tuple[Any, Sequence[Any]]:
        # A `Queue` object, not a name: Celery adds every unknown name to `app.amqp.queues` for ever, and a worker
        # started without -Q would consume from it.
        name = queue_name(keyspace, slot, settings.key_prefix)
        queue = Queue(name, exchange=self._exchange, routing_key=name, durable=True)
        declared: Sequence[Any] = ()
        if self._driver is not None:
            declared = self._driver.declare(queue, settings.key_prefix)
        return self._queues.setdefault((keyspace, slot), (queue, declared))


def _explicit_key(called: str, headers: Mapping[str, Any]) -> str:
    try:
        return key_text(headers[KEY_HEADER])
    except InvalidKey as exc:
        raise InvalidKey(f"task {called!r}: header {KEY_HEADER!r}: {exc}") from exc


def _refuse_other_destination(options: Mapping[str, Any], called: str, slot_queue: str, prefix: str) -> None:
    for option in ("queue", "exchange", "routing_key"):
        given = getattr(options.get(option), "name", options.get(option))
        # A retry names the queue its message came from. With other arguments it may now belong to another slot.
        if given and not is_slot_queue(given, prefix):
            raise RoutingConflict(
                f"task {called!r} is keyed and goes to the queue of its key's slot, {slot_queue!r}: "
                f"leave out {option}={given!r}"
            )


def _slot_given(options: Mapping[str, Any], keyspace: str, prefix: str) -> Slot | None:
    """Return the queue that a retry comes from. The retry goes back there; the worker passes it on if necessary."""
    for option in ("queue", "routing_key"):
        given = getattr(options.get(option), "name", options.get(option))
        found = slot_of_queue(given, prefix) if isinstance(given, str) else None
        if found is not None and found[0] == keyspace:
            return found[1]
    return None


def install(
    app: Any,
    tasks: KeyedTasks,
    settings: Callable[[], Settings],
    placement_of: Callable[[Keyspace, str], Slot] | None = None,
) -> None:
    """Wrap every router that the app creates from now on, and the existing one, in a `StickyRouter`.

    This does not read the app's configuration. It replaces the method on the `amqp` object, not in a subclass, so it
    works with any `amqp_cls` and with an `app.amqp` that already exists.
    """
    amqp = app.amqp
    make = amqp.Router  # called at the first publish and by `app.conf.update(task_routes=...)` (celery/app/amqp.py)

    def make_router(*args: Any, **kwargs: Any) -> StickyRouter:
        return StickyRouter(
            make(*args, **kwargs), tasks, settings, placement_of=placement_of, connect=app.connection_for_write
        )

    amqp.Router = make_router
    if "router" in vars(amqp):  # a cached property that was already read
        amqp.router = amqp.Router()
    # This makes `self.request.sticky` None for a task that has no key or runs in place. It also keeps a retry from
    # sending the stamp again: Celery resends request headers that are not attributes of Context (celery/app/task.py).
    if not hasattr(Context, STAMP_HEADER):
        Context.sticky = None
