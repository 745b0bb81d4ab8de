"""Sends requests and scripts over the driver's one connection, and turns the server's refusals into errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from celery_sticky.errors import BrokerUnavailable, SlotBroken
from celery_sticky.queues.redis.scripts import Script
from celery_sticky.redis_errors import describe
from celery_sticky.redis_resp import Argument, ServerError, is_unknown_script
from celery_sticky.redis_wire import Wire


class Server:
    """The server's end of the connection. Used by one thread."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def run(self, script: Script, keys: Sequence[Argument], said: Sequence[Argument]) -> Sequence[object]:
        """Run a script that returns a list.

        Raises:
            SlotBroken: a key has a wrong type.
            BrokerUnavailable: no answer, or the server refused.
        """
        return cast(Sequence[object], self.run_one(script, keys, said))

    def run_one(self, script: Script, keys: Sequence[Argument], said: Sequence[Argument]) -> object:
        """Run a script that returns one value; raises as `run`."""
        return self.call(script, keys, said)[0]

    def call(
        self, script: Script, keys: Sequence[Argument], said: Sequence[Argument], after: Sequence[bytes] = ()
    ) -> list[object]:
        """Return the replies to a script and to the requests `after` it; only its own if it had to be sent again."""
        replies = self.wire.call(script.request(keys, said), *after)
        if is_unknown_script(replies[0]):
            replies = self.wire.call(script.full_request(keys, said))
        return [self.answered(reply) for reply in replies]

    def run_each(
        self, script: Script, calls: Sequence[tuple[Sequence[Argument], Sequence[Argument]]]
    ) -> list[object | SlotBroken]:
        """Run a script once for each pair of keys and arguments, in one round trip; a wrong type is an answer.

        Raises:
            BrokerUnavailable: no answer, or the server refused one of the calls: each may have been carried out or not.
        """
        replies = self.wire.call(*[script.request(*call) for call in calls])
        again = [i for i, reply in enumerate(replies) if is_unknown_script(reply)]
        if again:  # the first one carries the script, and the server then has it for the others
            requests = [script.full_request(*calls[again[0]]), *(script.request(*calls[i]) for i in again[1:])]
            for i, reply in zip(again, self.wire.call(*requests), strict=True):
                replies[i] = reply
        return [self._answered_or_broken(reply) for reply in replies]

    def _answered_or_broken(self, reply: object) -> object | SlotBroken:
        try:
            return self.answered(reply)
        except SlotBroken as broken:
            return broken

    def ask(self, *requests: bytes) -> list[object]:
        """Send requests together and return their replies; raises as `run` if one is refused."""
        return [self.answered(reply) for reply in self.wire.call(*requests)]

    def answered(self, reply: object) -> object:
        """Return the reply, unless it is a refusal."""
        if isinstance(reply, ServerError) and "WRONGTYPE" in str(reply):
            raise SlotBroken(str(reply))
        if isinstance(reply, ServerError):
            self.wire.drop()  # the server may be a replica now: a new connection asks Sentinel again
            raise BrokerUnavailable(f"Redis: {describe(str(reply))}")
        return reply
