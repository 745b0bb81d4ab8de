"""The view of a keyspace in Redis: one hash for the document, two for the heartbeats, a script per verb.

Keys, all prefixed with the app's `global_keyprefix`: `<prefix>:<keyspace>:view`, `:beats` and `:heard`, the channel
`<prefix>:<keyspace>:signals:<db>`, and `<prefix>:revoked`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from celery_sticky.errors import RecordUnusable, StickyError
from celery_sticky.ownership.events import HeartbeatHeard, ViewChanged
from celery_sticky.ownership.view import View
from celery_sticky.stores.base import Heartbeat, Reading, Signal
from celery_sticky.stores.redis.client import Client, Server, script


class RedisStore(Client[Signal]):
    """See `celery_sticky.stores.base.Store`."""

    durable = False

    def __init__(self, server: Server, keyspace: str) -> None:
        root = f"{server.prefix}:{keyspace}"
        self._view, self._heartbeats, self._revoked = f"{root}:view", f"{root}:beats", f"{server.prefix}:revoked"
        heard = f"{root}:heard"
        self._own: set[str] = set()
        scripts = {verb: script(__package__, "run_id", verb) for verb in ("read", "swap", "heartbeat")}
        scripts |= {verb: script(__package__, verb) for verb in ("revoke", "revoked")}
        types = {self._view: "hash", self._heartbeats: "hash", heard: "hash", self._revoked: "zset"}
        super().__init__(server, root, scripts, types, keys=[self._view, self._heartbeats, heard])

    def read(self) -> Reading:
        """See `Store.read`."""
        return self.reading(self._run("read", self._keys))

    def reading(self, reply: list[Any]) -> Reading:
        """Return what the script `read` has replied."""
        document, heartbeats, run_id, seconds, micros, heard = reply
        now = int(seconds) + int(micros) / 1e6
        return Reading(
            view=None if document is None else self._read_view(document),
            heartbeats=self._counters(heartbeats),
            store_id=run_id.decode(),
            clock=now,
            silent={incarnation: now - at / 1000 for incarnation, at in self._counters(heard).items()},
        )

    def swap(
        self, old: View | None, new: View, guard: Mapping[str, int] | None = None, until: float | None = None
    ) -> bool:
        """See `Store.swap`."""
        guard = guard or {}
        expected = (old.version, old.generation) if old else ("", "")
        guards = [part for pair in guard.items() for part in pair]
        incarnations = [member.incarnation for member in new.members.values()]
        limit = "" if until is None else int(until * 1e6)
        document = [new.version, new.generation, new.to_bytes()]
        args = [self._channel, new.store_id, limit, *expected, *document, len(guard)]
        return bool(self._run("swap", self._keys, [*args, *guards, *incarnations]) == 1)

    def heartbeat(self, incarnation: str, *, announce: bool = True) -> Heartbeat:
        """See `Store.beat`."""
        self._own.add(incarnation)
        args = [self._channel, incarnation, int(announce)]
        counter, version, generation, run_id, heartbeats = self._run("heartbeat", self._keys, args)
        return Heartbeat(
            counter > 0, int(version), int(generation), run_id.decode(), self._counters(heartbeats), counter
        )

    def revoke(self, task_ids: Collection[str], *, ttl: float, limit: int) -> None:
        """See `Store.revoke`. The newest ids are those that expire last."""
        self._run("revoke", [self._revoked], [int(ttl * 1e6), limit, *task_ids])

    def revoked(self) -> Collection[str]:
        """See `Store.revoked`."""
        return frozenset(task_id.decode() for task_id in self._run("revoked", [self._revoked]))

    def _parse(self, payload: bytes) -> Signal | None:
        """Parse a signal; None for one's own heartbeats and for signals that this release does not know."""
        with suppress(ValueError):
            match payload.decode().split(":", 2):
                case ["changed", version]:
                    return ViewChanged(int(version))
                case ["heard", counter, incarnation] if incarnation not in self._own:
                    return HeartbeatHeard(incarnation, int(counter))
        return None

    def _read_view(self, document: bytes) -> View:
        try:
            return View.from_bytes(document)
        except StickyError as error:
            raise type(error)(f"{self._server.at}: {self._view}: {error}") from error

    def _counters(self, flat: list[bytes]) -> dict[str, int]:
        try:
            return {name.decode(): int(counter) for name, counter in zip(flat[::2], flat[1::2], strict=True)}
        except ValueError as error:
            raise RecordUnusable(
                f"{self._server.at}: {self._heartbeats} holds a value that is no heartbeat: {error}"
            ) from error
