"""The jobs of a keyspace in Redis, under `<prefix>:<keyspace>:jobs`. `record.lua` lists the keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, TypeVar

from celery_sticky.errors import StickyError, StoreUnavailable
from celery_sticky.redis_clients import translate_errors
from celery_sticky.slots import Slot, WorkerQueue, parse_slot
from celery_sticky.stores.jobs import (
    SEEN_NOTES,
    SEEN_RECORDS,
    Admission,
    Checkpoint,
    DispatchOutcome,
    JobAddress,
    JobCounts,
    JobPlaces,
    JobRecord,
    NewJob,
    Report,
    Reserved,
    SlotJobs,
    digest,
)
from celery_sticky.stores.notes import MAX_DEAD, MAX_DEAD_BYTES, FailedDelivery, Fate
from celery_sticky.stores.redis.client import Server, script
from celery_sticky.stores.redis.jobs import dead_notes, replies
from celery_sticky.stores.ticks import Tick, milliseconds

Answer = TypeVar("Answer")
VERBS = (
    "admit",
    "stop",
    "change",
    "ending",
    "stop_error",
    "find",
    "claim_tick",
    "open",
    "look",
    "places",
    "reserve",
    "save",
)
NOTE_VERBS = ("notify", "settle", *dead_notes.VERBS)
"""The verbs about notes."""
PAGED_VERBS = ("records", "counts", "keys", "close", "forget")
"""The verbs that go through all records, a page at a time."""
PAGE, CHANGED_PAGE = 250, 100
"""Number of records after which a page ends, because the server serves nobody else meanwhile: of those that are read,
and of those that are changed, which takes longer."""
FIRST_PAGE = (PAGE, b"0")
"""The arguments of the page that comes first, of all slots."""
TYPES = {
    "queued": "set",
    "ending": "set",
    "revisions": "hash",
    "places": "hash",
    "fences": "hash",
    "ticks": "hash",
    "closed": "string",
    "dead": "stream",
    "dead_payloads": "hash",
}
"""The keys that all slots share. For keys of a single slot, the keeper reports which slot it is."""


class RedisJobs(dead_notes.RedisDeadNotes):
    """See `celery_sticky.stores.jobs.JobStore`."""

    def __init__(self, server: Server, keyspace: str) -> None:
        self._root = f"{server.prefix}:{keyspace}:jobs"
        self._longest_step = server.socket_timeout / 2
        scripts = {verb: script(__package__, "record", verb) for verb in VERBS}
        scripts |= {verb: script(__package__, "record", "notes", verb) for verb in NOTE_VERBS}
        scripts |= {verb: script(__package__, "record", "pages", verb) for verb in PAGED_VERBS}
        types = {f"{self._root}:{name}": kind for name, kind in TYPES.items()}
        super().__init__(server, self._root, scripts, types, keys=[self._root])

    def admit(self, job: NewJob, *, max_queued: int, outcome_ttl: float) -> tuple[Admission, DispatchOutcome | None]:
        """See `JobStore.admit`."""
        return replies.admission(self._ask("admit", *self._admit(job, max_queued, outcome_ttl)))

    def admit_each(
        self, jobs: Sequence[NewJob], *, max_queued: int, outcome_ttl: float
    ) -> Sequence[Admission | StickyError]:
        """See `JobStore.admit_each`."""
        calls = [self._admit(job, max_queued, outcome_ttl) for job in jobs]
        return self._ask_each("admit", calls, lambda reply: replies.admission(reply)[0])

    def stop_each(self, jobs: Sequence[JobAddress]) -> Sequence[str | StickyError | None]:
        """See `JobStore.stop_each`."""
        return self._ask_each("stop", [(self._channel, *job) for job in jobs], replies.text)

    def notify_each(self, notes: Sequence[tuple[JobAddress, bytes]], *, limit: int) -> Sequence[Fate | StickyError]:
        """See `JobStore.notify_each`."""
        calls = [(self._channel, *job, payload, limit) for job, payload in notes]
        return self._ask_each("notify", calls, lambda reply: Fate(reply.decode()))

    def _admit(self, job: NewJob, max_queued: int, outcome_ttl: float) -> Sequence[Any]:
        dispatch = [max_queued, milliseconds(outcome_ttl), digest(job.name, job.key, job.payload), int(job.durable)]
        return [self._channel, *dispatch, job.slot, job.id, job.name, job.key, job.payload]

    def outcome(self, job_id: str, timeout: float) -> DispatchOutcome | None:
        """See `JobStore.outcome`. It waits in steps, because the client takes a longer silence for a lost server."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            outcome = self._await_outcome(job_id, min(left, self._longest_step))
            if outcome is not None or left <= self._longest_step:
                return outcome

    def stop(self, slot: Slot, name: str, key: str) -> str | None:
        """See `JobStore.stop`."""
        return replies.text(self._ask("stop", self._channel, slot, name, key))

    def update(self, slot: Slot, name: str, key: str, payload: bytes | None, *, restart: bool) -> str | None:
        """See `JobStore.update`."""
        said = () if payload is None else (payload, digest(name, key, payload))
        return replies.text(self._ask("change", self._channel, slot, name, key, "update", int(restart), *said))

    def pause(self, slot: Slot, name: str, key: str) -> str | None:
        """See `JobStore.pause`."""
        return replies.text(self._ask("change", self._channel, slot, name, key, "pause"))

    def resume(self, slot: Slot, name: str, key: str) -> str | None:
        """See `JobStore.resume`."""
        return replies.text(self._ask("change", self._channel, slot, name, key, "resume"))

    def ending(self) -> int:
        """See `JobStore.ending`."""
        return int(self._ask("ending"))

    def stop_error(self, job_id: str) -> str:
        """See `JobStore.stop_error`."""
        return replies.text(self._ask("stop_error", job_id)) or ""

    def notify(self, slot: Slot, name: str, key: str, payload: bytes, *, limit: int) -> Fate:
        """See `JobStore.notify`."""
        return Fate(self._ask("notify", self._channel, slot, name, key, payload, limit).decode())

    def find(self, slot: Slot, name: str, key: str) -> JobRecord | None:
        """See `JobStore.find`."""
        found = self._ask("find", slot, name, key)
        return None if found is None else replies.record(found)

    def records(self, name: str | None = None, key: str | None = None, slot: Slot | None = None) -> Sequence[JobRecord]:
        """See `JobStore.records`."""
        pages = self._pages("records", slots=[] if slot is None else [slot])
        found = map(replies.record, chain.from_iterable(records for (records,) in pages))
        wanted = [record for record in found if name in (None, record.name) and key in (None, record.key)]
        return list({(record.slot, record.name, record.key): record for record in wanted}.values())

    def counts(self) -> JobCounts:
        """See `JobStore.counts`."""
        return self.counted(self._ask("counts", *FIRST_PAGE))

    def counted(self, first: Sequence[Any]) -> JobCounts:
        """Return the counts of which the script `counts` has replied this first page."""
        cursor, left, page = first
        rest = self._pages("counts", slots=left, cursor=cursor) if left else ()
        return replies.counts([page, *(page for (page,) in rest)])

    def keys(self, name: str) -> Mapping[str, str]:
        """See `JobStore.keys`."""
        flat = chain.from_iterable(page for (page,) in self._pages("keys", name))
        return {key.decode(): text.decode() for key, text in zip(flat, flat, strict=True)}

    def close_keyspace(self, *, closed: bool) -> None:
        """See `JobStore.close_keyspace`."""
        for _ in self._pages("close", self._channel, int(closed), size=CHANGED_PAGE):
            pass

    def forget_places(self) -> int:
        """See `JobStore.forget_places`."""
        return sum(count for (count,) in self._pages("forget", size=CHANGED_PAGE))

    def claim_tick(self, name: str, every: float) -> Tick:
        """See `JobStore.claim_tick`."""
        claimed, left = self._ask("claim_tick", name, milliseconds(every))
        return Tick(claimed == 1, left / 1000)

    def open(self, slot: Slot, epoch: int) -> None:
        """See `JobStore.open`."""
        replies.check(self._ask("open", slot, epoch))

    def look(self, known: Mapping[Slot, int]) -> Mapping[Slot, SlotJobs]:
        """See `JobStore.look`."""
        flat = iter(self._ask("look", SEEN_NOTES, SEEN_RECORDS, *known, *known.values()))
        return {
            replies.slot(slot): replies.slot_jobs(revision, [replies.record(record) for record in records], notes)
            for slot, revision, records, notes in zip(flat, flat, flat, flat, strict=True)
        }

    def places(self, known: int) -> JobPlaces | None:
        """See `JobStore.places`."""
        if (reply := self._ask("places", known)) is None:
            return None
        revision, *flat = reply
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return JobPlaces(int(revision), {replies.place(place): int(revised) for place, revised in pairs})

    def reserve(self, slot: Slot, epoch: int, worker: str, ids: Collection[str], *, known: int = 0) -> Reserved:
        """See `JobStore.reserve`."""
        fence, revision, *flat = self._ask("reserve", slot, epoch, known, worker, *ids)
        replies.check(fence)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return Reserved({job_id.decode(): attempt for job_id, attempt in pairs}, int(revision))

    def save(self, slot: Slot, epoch: int, checkpoints: Sequence[Checkpoint]) -> Collection[str]:
        """See `JobStore.save`."""
        said = chain.from_iterable((one.id, one.attempt, one.number, one.saved) for one in checkpoints)
        fence, *ids = self._ask("save", slot, epoch, *said)
        replies.check(fence)
        return {job_id.decode() for job_id in ids}

    def settle(
        self,
        slot: Slot,
        epoch: int,
        reports: Sequence[Report],
        notes: Collection[str],
        failed: Sequence[FailedDelivery] = (),
        *,
        outcome_ttl: float,
        known: int = 0,
    ) -> int:
        """See `JobStore.settle`."""
        told = chain.from_iterable(
            (
                *(note.split(" ", 1) for note in notes),
                *((*one.note.split(" ", 1), one.delivery, int(one.dead), one.error) for one in failed),
                *(_reported(report) for report in reports),
            )
        )
        numbers = (milliseconds(outcome_ttl), MAX_DEAD, MAX_DEAD_BYTES, len(notes), len(failed))
        fence, revision = self._ask("settle", slot, epoch, known, *numbers, *told)
        replies.check(fence)
        return int(revision)

    def where(self, slot: Slot) -> str:
        """See `JobStore.where`."""
        return f"{self._root}:{slot}"

    def _parse(self, payload: bytes) -> Slot | None:
        """See `Client`."""
        with suppress(UnicodeDecodeError):
            slot = parse_slot(payload.decode())
            return None if isinstance(slot, WorkerQueue) else slot
        return None

    def _await_outcome(self, job_id: str, timeout: float) -> DispatchOutcome | None:
        with self._server.asking(self._types), translate_errors(StoreUnavailable, self._server.at):
            key, block = f"{self._root}:outcome:{job_id}", milliseconds(timeout) if timeout > 0 else None
            told: Any = self._server.client.xread({key: 0}, count=1, block=block)
        if not told:
            return None
        [[_, [(_, fields)]]] = told
        return DispatchOutcome(fields[b"error"].decode())

    def _ask(self, verb: str, *args: Any) -> Any:
        return self._run(verb, [self._root], args)

    def _pages(
        self, verb: str, *args: Any, size: int = PAGE, slots: Sequence[Slot | bytes] = (), cursor: bytes = b"0"
    ) -> Iterator[Sequence[Any]]:
        """Run a verb for one page after the other, of these slots (none: all); return its replies."""
        left = slots
        while True:
            cursor, rest, *reply = self._ask(verb, *args, size, cursor, *left[:size])
            yield reply
            left = [*rest, *left[size:]]
            if not left:
                return

    def _ask_each(
        self, verb: str, calls: Sequence[Sequence[Any]], read: Callable[[Any], Answer]
    ) -> Sequence[Answer | StickyError]:
        replies = self._run_many(verb, [self._root], calls)
        return [reply if isinstance(reply, StickyError) else read(reply) for reply in replies]


def _reported(report: Report) -> tuple[Any, ...]:
    return (
        report.id,
        report.result.value,
        report.error,
        report.failures,
        report.strikes,
        int(report.apart),
        report.pause,
    )
