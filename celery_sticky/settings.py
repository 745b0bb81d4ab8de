"""Every `sticky_*` setting with its default, read once and checked as a whole.

This module does not depend on Celery: `Settings.read` takes a plain mapping of the `sticky_*` entries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Self

from celery_sticky.errors import InvalidKey, InvalidSettings
from celery_sticky.keys import DEFAULT_PREFIX, DEFAULT_SLOTS, HASH_NAME, check_keyspace
from celery_sticky.keyspace import MOST_SLOTS, DeadBounds, Keyspace

SETTING = "sticky_"
"""Prefix of the name of every setting."""

MAX_SLOTS = MOST_SLOTS
_PREFIX = re.compile(r"[A-Za-z0-9_:-]{1,64}")


class OnLeaseLoss(StrEnum):
    """Treatment of running tasks when trust in the lease ends."""

    TERMINATE = "terminate"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings; `Settings.slots` is `sticky_slots` in `app.conf`, and so on. Durations are in seconds."""

    store: str | None = None
    """URL of the store; None: the broker, which then needs a driver that has a store."""
    slots: int = DEFAULT_SLOTS
    """Number of slots of a keyspace without a number of its own."""
    keyspaces: Mapping[str, int] | None = None
    """The keyspaces a worker takes part in, with their slots; None: `default` and those its tasks name."""
    lease_ttl: float = 10.0
    lease_margin: float = 2.0
    """How long before the end of its lease a member stops trusting it."""
    settle: float = 3.0
    """How long the first member of an empty keyspace waits for peers before it plans."""
    on_lease_loss: OnLeaseLoss = OnLeaseLoss.TERMINATE
    max_waiting: int = 4096
    """How many messages may wait in a worker for the running task of their key."""
    max_waiting_bytes: int = 64 * 1024 * 1024
    """Bytes of fetched messages that have not started. A worker at this limit fetches no more; one message always
    fits."""
    max_attempts: int = 5
    """Starts without an end after which a message is buried."""
    key_prefix: str = DEFAULT_PREFIX
    """Prefix of the names of slot queues and of records in the store."""
    weight: int = 1
    """This worker's share of the slots, relative to the others'; 0: it takes part but gets no slots."""
    attributes: Mapping[str, str] | None = None
    """This worker's attributes, passed to `assign` functions."""
    broker_grace: float = 30.0
    """How long a worker that lost its broker or its job host keeps its slots while other workers can take them."""
    claim_ahead: int | None = None
    """How many runs of tasks with `delivery="at_most_once"` may be claimed before they begin; None: as many as the pool
    runs at a time."""
    ledger_retention: float = 86400.0
    """How long the ledger knows a task that has finished."""
    dead_limit: int = 0
    """How many buried messages of a keyspace are kept; the oldest are dropped. 0: all."""
    dead_ttl: float = 0.0
    """How long buried messages are kept. 0: for ever."""
    loop_timeout: float | None = 30.0
    """How long Celery's loop may be silent before the worker gives its slots away; None or 0: the loop is not
    watched."""
    runtime_dir: str | None = None
    """The folder for this machine's lock files; None: chosen by the worker."""
    revoke_ttl: float = 10800.0
    revoke_limit: int = 50000
    """How long the store keeps revoked task ids, and how many of them."""
    job_start_timeout: float = 40.0
    """How long the call of a job's start may take, and how long a dispatch waits."""
    job_stop_timeout: float = 10.0
    """How long the call of a job's stop may take before the job host is killed with all jobs in it."""
    job_shutdown_timeout: float = 120.0
    """How long `sticky.jobs.shutdown` waits for a keyspace's jobs to stop."""
    job_max_queued: int = 1000
    """How many jobs of a keyspace may wait for their first start."""
    job_max_notes: int = 1000
    """How many notifications may wait for a job, unless its declaration says otherwise."""
    job_max_deliveries: int = 5
    """How often a job gets a notification that it cannot handle, unless its declaration says otherwise."""
    job_outcome_ttl: float = 300.0
    """How long a repeated dispatch can still get the outcome of the first one."""
    job_poll: float = 5.0
    """How often a worker polls for job changes, in case a notification was lost."""
    job_hosts: int = 1
    """Among how many processes a worker spreads its jobs. A job that ends or blocks its process interrupts those in it
    once."""
    job_quarantine: int = 4
    """How many jobs that have ended or blocked their process a worker runs at a time, each in a process of its own."""
    job_threads: int = 16
    """How many starts of jobs that are not coroutines may run at a time in a job host; as many stops, and as many
    notifications."""
    job_watchdog: float = 30.0
    """How long a job may block the event loop of the job host, or the job host do nothing, before it is killed. 0: for
    any time."""
    job_logger: str = "celery_sticky.jobs"
    """The logger that jobs write to, as `job.logger`."""
    job_app: str | None = None
    """App argument of the job host, as in `celery -A`; None: the same as the worker's."""
    placed: Mapping[str, Keyspace] = field(default_factory=dict)
    """Keyspaces declared as a `Keyspace`, by name. This is not an entry of `app.conf`."""

    @classmethod
    def read(cls, conf: Mapping[str, Any]) -> Self:
        """Create settings from a mapping's `sticky_*` entries; other entries are ignored.

        Raises:
            InvalidSettings: an entry is unknown, has the wrong type or range, or two entries contradict each other.
        """
        given = {name.removeprefix(SETTING): value for name, value in conf.items() if name.startswith(SETTING)}
        _check_names(given)
        values = {name: _READERS[name](SETTING + name, value) for name, value in given.items()}
        keyspaces = values.pop("keyspaces", None)
        settings = cls(**values)
        if keyspaces is not None:
            settings = replace(settings, keyspaces={name: own or settings.slots for name, own in keyspaces.items()})
            settings = settings.declaring(_placed(given["keyspaces"]))
        _check_together(settings)
        return settings

    def declaring(self, keyspaces: Iterable[Keyspace]) -> Self:
        """Return these settings with the keyspaces that the code declares.

        Raises:
            InvalidSettings: two different keyspaces have the same name.
        """
        placed, own = dict(self.placed), dict(self.keyspaces or {})
        for keyspace in keyspaces:
            if placed.setdefault(keyspace.name, keyspace) != keyspace:
                raise InvalidSettings(f"keyspace {keyspace.name!r} is declared twice with different options")
            if keyspace.name in own and keyspace.slots is not None:
                own[keyspace.name] = keyspace.slots
        return replace(self, placed=placed, keyspaces=self.keyspaces and own)

    def slots_of(self, keyspace: str) -> int:
        """Return the number of slots of a keyspace, also of one that this worker does not take part in."""
        declared = self.placed.get(keyspace)
        named = (self.keyspaces or {}).get(keyspace)
        return named or (declared and declared.slots) or self.slots

    def dead_bounds_of(self, keyspace: str) -> DeadBounds:
        """Return the bounds of a keyspace's dead queue."""
        declared = self.placed.get(keyspace)
        if declared is None:
            return DeadBounds(self.dead_limit, self.dead_ttl)
        return declared.dead_bounds(self.dead_limit, self.dead_ttl)

    def hash_of(self, keyspace: str) -> str:
        """Return the name of the hash and placement that must be in the keyspace's document."""
        declared = self.placed.get(keyspace)
        return declared.hash_name if declared is not None else HASH_NAME

    def placed_keyspace(self, keyspace: str) -> Keyspace | None:
        """Return the keyspace if it is a placed keyspace, else None."""
        declared = self.placed.get(keyspace)
        return declared if declared is not None and declared.placed else None

    @property
    def io_timeout(self) -> float:
        """Seconds a store or broker may take to answer. A heartbeat that hangs must leave time for more in a lease."""
        return max(0.5, min(5.0, self.lease_ttl / 5))

    @property
    def job_stop_before(self) -> float:
        """Seconds before the end of trust at which jobs are stopped. A lost heartbeat must not come to that."""
        return (self.lease_ttl - self.lease_margin) / 4

    @property
    def job_grace(self) -> float:
        """Seconds after the end of trust for which jobs may go on stopping."""
        return self.job_stop_timeout if self.on_lease_loss is OnLeaseLoss.FINISH else 0.0


def _check_names(given: Mapping[str, Any]) -> None:
    for name in sorted(SETTING + name for name in given):
        if name not in NAMES:
            near = get_close_matches(name, NAMES, n=1, cutoff=0)
            raise InvalidSettings(f"unknown setting {name!r}; did you mean {near[0]!r}?")


def _check_together(s: Settings) -> None:
    if s.lease_margin >= s.lease_ttl / 3:
        raise InvalidSettings(
            f"sticky_lease_margin ({s.lease_margin:g} s) must be less than a third of sticky_lease_ttl "
            f"({s.lease_ttl:g} s): a lease is renewed every third of its ttl, and one lost heartbeat must not end trust"
        )


# -- One reader for each type of value ------------------------------------------------------------

_Reader = Callable[[str, Any], Any]


def _number(least: float, most: float = math.inf) -> Callable[[str, Any], float]:
    def read(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidSettings(f"{name} is {value!r}: it must be a number of seconds")
        if not least <= value <= most or math.isinf(value):
            raise InvalidSettings(f"{name} is {value!r}: it must be {_range(least, most)} seconds")
        return float(value)

    return read


def _optional_seconds(name: str, value: Any) -> float | None:
    return None if value is None else _number(0.0)(name, value) or None


def _watchdog(name: str, value: Any) -> float:
    return 0.0 if _number(0.0)(name, value) == 0 else _number(1.0)(name, value)


def _integer(least: int, most: float = math.inf) -> _Reader:
    def read(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidSettings(f"{name} is {value!r}: it must be a whole number")
        if not least <= value <= most:
            raise InvalidSettings(f"{name} is {value!r}: it must be {_range(least, most)}")
        return int(value)

    return read


def _optional_integer(least: int) -> _Reader:
    checked = _integer(least)
    return lambda name, value: None if value is None else checked(name, value)


def _range(least: float, most: float) -> str:
    return f"at least {least:g}" if math.isinf(most) else f"{least:g} to {most:g}"


def _optional_text(name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise InvalidSettings(f"{name} is {value!r}: it must be text, or None")


def _attributes(name: str, value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if isinstance(value, Mapping) and all(isinstance(part, str) for pair in value.items() for part in pair):
        return dict(value)
    raise InvalidSettings(f"{name} is {value!r}: it must be a mapping of text to text")


def _text(name: str, value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    raise InvalidSettings(f"{name} is {value!r}: it must be text")


def _prefix(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _PREFIX.fullmatch(value):
        raise InvalidSettings(f"{name} is {value!r}: it must be 1 to 64 letters, digits, '_', '-' or ':'")
    return value


def _on_lease_loss(name: str, value: Any) -> OnLeaseLoss:
    try:
        return OnLeaseLoss(value)
    except ValueError as exc:
        raise InvalidSettings(f"{name} is {value!r}: it must be 'terminate' or 'finish'") from exc


def read_keyspaces(name: str, value: Any) -> dict[str, int | None] | None:
    """Read names (a list, or comma-separated text) or a mapping of name -> slots. A name without slots maps to None.

    In a list, a `Keyspace` may stand for its name.

    Raises:
        InvalidSettings: a name is invalid, or there is no name.
    """
    if value is None:
        return None
    named: dict[Any, Any]
    if isinstance(value, Mapping):
        named = {key: _slots(f"{name}[{key!r}]", slots) for key, slots in value.items()}
    elif isinstance(value, str):
        named = dict.fromkeys(part.strip() for part in value.split(",") if part.strip())
    elif isinstance(value, list | tuple | set | frozenset):
        named = {one.name: one.slots for one in value if isinstance(one, Keyspace)}
        named |= dict.fromkeys(one for one in value if not isinstance(one, Keyspace))
    else:
        raise InvalidSettings(f"{name} is {value!r}: it must be keyspace names, or a mapping of name to slots")
    try:
        checked = {check_keyspace(key): slots for key, slots in named.items()}
    except InvalidKey as exc:
        raise InvalidSettings(f"{name}: {exc}") from exc
    if not checked:
        raise InvalidSettings(f"{name} names no keyspace; remove it to use `default` and all that the tasks name")
    return checked


def _placed(value: Any) -> list[Keyspace]:
    listed = isinstance(value, list | tuple | set | frozenset)
    return [one for one in value if isinstance(one, Keyspace)] if listed else []


_slots = _integer(1, MAX_SLOTS)

_READERS: Mapping[str, _Reader] = {
    "store": _optional_text,
    "slots": _slots,
    "keyspaces": read_keyspaces,
    "lease_ttl": _number(1.0),
    "lease_margin": _number(0.0),
    "settle": _number(0.0),
    "on_lease_loss": _on_lease_loss,
    "max_waiting": _integer(1),
    "max_waiting_bytes": _integer(1),
    "max_attempts": _integer(1),
    "key_prefix": _prefix,
    "weight": _integer(0),
    "attributes": _attributes,
    "broker_grace": _number(0.0),
    "claim_ahead": _optional_integer(1),
    "ledger_retention": _number(1.0),
    "dead_limit": _integer(0),
    "dead_ttl": _number(0.0),
    "loop_timeout": _optional_seconds,
    "runtime_dir": _optional_text,
    "revoke_ttl": _number(0.0),
    "revoke_limit": _integer(0),
    "job_start_timeout": _number(0.1),
    "job_stop_timeout": _number(0.1),
    "job_shutdown_timeout": _number(0.0),
    "job_max_queued": _integer(1),
    "job_max_notes": _integer(1),
    "job_max_deliveries": _integer(1),
    "job_outcome_ttl": _number(1.0),
    "job_poll": _number(0.1),
    "job_hosts": _integer(1),
    "job_quarantine": _integer(1),
    "job_threads": _integer(1),
    "job_watchdog": _watchdog,
    "job_logger": _text,
    "job_app": _optional_text,
}

NAMES = tuple(SETTING + name for name in _READERS)
"""The valid names of `sticky_*` entries in `app.conf`."""
