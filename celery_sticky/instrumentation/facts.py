"""What can be reported: one frozen dataclass for each kind. A fact says what has happened, not what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that happened in a worker."""

    worker: str
    """Its node name."""
    keyspace: str


@dataclass(frozen=True, slots=True)
class SlotsGained(Fact):
    """A batch of slots has opened here; other workers gave them away, or they had no owner."""

    owners: Mapping[str, frozenset[int]]
    """Their former owners, and which slots each gave; under an empty name those without a known owner."""

    @property
    def slots(self) -> frozenset[int]:
        """All slots of the batch."""
        return frozenset[int]().union(*self.owners.values())


@dataclass(frozen=True, slots=True)
class SlotsTakenOver(Fact):
    """A batch of slots has opened here; their former owner was declared dead."""

    owner: str
    """The former owner; the name of this worker, if a former process with the name was declared dead."""
    slots: frozenset[int]


@dataclass(frozen=True, slots=True)
class SlotsLost(Fact):
    """Nothing of a batch of slots runs here any more."""

    slots: frozenset[int]
    owners: Mapping[str, frozenset[int]]
    """Their next owners; under an empty name those of which the next owner is not known."""
    given: bool
    """This worker gives them away. False: they belong to other workers already, or will."""


@dataclass(frozen=True, slots=True)
class WorkerEvicted(Fact):
    """This worker has evicted another one."""

    evicted: str
    """The name of the other one."""
    silence: float
    """Seconds since its last heartbeat."""
    slots: int
    """How many slots it owned."""


@dataclass(frozen=True, slots=True)
class EvictedHere(Fact):
    """This worker was evicted by the others. It joins again as another member."""

    incarnation: str
    """Of the membership that has ended."""
    silence: float
    """Seconds since the last heartbeat that the store has counted, when it was sent."""
    slots: int
    """How many slots were open here."""


@dataclass(frozen=True, slots=True)
class StoreAsked(Fact):
    """A member has asked the store for something."""

    request: str
    """`read`, `heartbeat` or `swap`."""
    seconds: float
    """How long it took, with everything that belongs to it."""
    answered: bool
    """False: the store did not answer, or with an error."""


@dataclass(frozen=True, slots=True)
class JobFact(Fact):
    """Something that happened to a run of a job in this worker."""

    name: str
    key: str
    id: str
    """The id of its dispatch."""
    attempt: int
    epoch: int
    seconds: float
    """How long its start took, or its stop; for a failure, how long the run lasted."""


@dataclass(frozen=True, slots=True)
class JobStarted(JobFact):
    """A job has started here."""


@dataclass(frozen=True, slots=True)
class JobStopped(JobFact):
    """A run of a job has ended here, and it has not failed."""

    why: str
    """Why it was stopped, for people."""
    ran: float
    """Seconds from its start to the order to stop it; 0: it had not started."""


@dataclass(frozen=True, slots=True)
class JobFailed(JobFact):
    """A job failed to start here, or ended with an error."""

    error: str
