"""The placement store of a keyspace in Redis. `entry.lua` lists its keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from celery_sticky.errors import NotAMember
from celery_sticky.ownership.events import ViewChanged
from celery_sticky.ownership.view import View
from celery_sticky.stores.placement import START, Answer, Claims, Look, PinMoved, Pinned, PinRecord, Said, Version, Wish
from celery_sticky.stores.redis.client import Client, Server, script

VERBS = (
    "look",
    "claim",
    "release",
    "holder",
    "pin",
    "unpin",
    "revoke",
    "pins",
    "enlist",
    "enlisted",
    "strike",
    "sweep",
    "lost",
    "forget",
)
AT_ONCE = 500
"""Number of keys that one script reads or writes."""


class RedisPlacementStore(Client[ViewChanged | PinMoved]):
    """See `celery_sticky.stores.placement.PlacementStore`."""

    def __init__(self, server: Server, keyspace: str) -> None:
        self._keyspace = keyspace
        root = f"{server.prefix}:{keyspace}"
        keys = [f"{root}:{name}" for name in ("view", "beats", "claims", "pins", "enlisted", "calls", "lost")]
        ahead = script("celery_sticky.stores.redis", "run_id") + script(__package__, "entry")
        scripts = {verb: ahead + script(__package__, verb) for verb in VERBS}
        super().__init__(server, root, scripts, dict.fromkeys(keys[:-1], "hash"), keys)

    def look(self, known: Version, keys: Collection[str]) -> Look:
        """See `PlacementStore.look`."""
        changed, document, *pins = self._ask("look", *known, *keys)
        found = {key: pin.decode() for key, pin in zip(keys, pins, strict=True) if pin}
        return Look(changed == 1, _view(document), found)

    def claim(self, incarnation: str, call: int, known: Version, wishes: Sequence[Wish], heartbeats: int = 0) -> Claims:
        """See `PlacementStore.claim`."""
        asked = [part for wish in wishes for part in (wish.key, wish.pin, int(wish.run))]
        what, *rest = self._ask("claim", incarnation, call, heartbeats, *known, *asked)
        match what:
            case b"gone":
                return Claims(member=False)
            case b"changed":
                return Claims(member=True, changed=True, view=_view(rest[0] if rest else None))
        pairs = zip(rest[::2], rest[1::2], strict=True)
        answers = {wish.key: _answer(*pair) for wish, pair in zip(wishes, pairs, strict=True)}
        return Claims(member=True, answers=answers)

    def release(self, incarnation: str, call: int, keys: Collection[str]) -> None:
        """See `PlacementStore.release`."""
        self._ask("release", incarnation, call, *keys)

    def holder(self, key: str) -> str:
        """See `PlacementStore.holder`."""
        return str(self._ask("holder", key).decode())

    def pin(self, worker: str, key: str, *, take: bool) -> Pinned:
        """See `PlacementStore.pin`."""
        what, *rest = self._ask("pin", self._channel, worker, key, int(take))
        match what:
            case b"gone":
                raise NotAMember(f"worker {worker!r} is not a live member of keyspace {self._keyspace!r} now")
            case b"held":
                return Pinned(by=rest[0].decode())
        token, incarnation = rest
        return Pinned(int(token), incarnation.decode())

    def unpin(self, worker: str, key: str, pinned: Pinned | None = None) -> bool:
        """See `PlacementStore.unpin`."""
        which = ("", "") if pinned is None else (pinned.token, pinned.incarnation)
        return bool(self._ask("unpin", self._channel, worker, key, *which) == 1)

    def revoke(self, key: str, token: int | None = None) -> str:
        """See `PlacementStore.revoke`."""
        return str(self._ask("revoke", self._channel, key, "" if token is None else token).decode())

    def pins(self, start: str = START) -> tuple[str, Sequence[PinRecord]]:
        """See `PlacementStore.pins`."""
        cursor, now, *flat = (part.decode() for part in self._ask("pins", start, AT_ONCE))
        four = zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
        return cursor, [PinRecord.made(key, worker, by, int(token), int(now)) for key, worker, by, token in four]

    def enlist(self, worker: str, incarnation: str) -> None:
        """See `PlacementStore.enlist`."""
        self._ask("enlist", worker, incarnation)

    def enlisted(self) -> Mapping[str, str]:
        """See `PlacementStore.enlisted`."""
        return self.names(self._ask("enlisted"))

    def names(self, reply: Sequence[bytes]) -> Mapping[str, str]:
        """Return what the script `enlisted` has replied."""
        flat = [part.decode() for part in reply]
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def strike(self, worker: str, incarnation: str) -> None:
        """See `PlacementStore.strike`."""
        self._ask("strike", worker, incarnation)

    def sweep(self, start: str = "0") -> str:
        """See `PlacementStore.sweep`."""
        return str(self._ask("sweep", start, AT_ONCE).decode())

    def lost(self, worker: str, incarnations: Collection[str]) -> Collection[str]:
        """See `PlacementStore.lost`."""
        return {key.decode() for key in self._ask("lost", worker, *incarnations)}

    def forget(self, incarnations: Collection[str], keys: Collection[str]) -> None:
        """See `PlacementStore.forget`."""
        remaining = list(keys)
        while remaining:
            part, remaining = remaining[:AT_ONCE], remaining[AT_ONCE:]
            self._ask("forget", len(incarnations), *incarnations, *part)

    def _parse(self, payload: bytes) -> ViewChanged | PinMoved | None:
        """See `Client`."""
        with suppress(ValueError):
            match payload.decode().split(":", 2):
                case ["changed", version]:
                    return ViewChanged(int(version))
                case ["pin", concerned, key]:
                    return PinMoved(key, frozenset(filter(None, concerned.split(","))))
        return None

    def _ask(self, verb: str, *args: Any) -> Any:
        return self._run(verb, self._keys, args)


def _view(document: bytes | None) -> View | None:
    return None if document is None else View.from_bytes(document)


def _answer(said: bytes, value: bytes) -> Answer:
    what = Said(said.decode())
    return Answer(what, token=int(value)) if what is Said.GRANTED else Answer(what, by=value.decode())
