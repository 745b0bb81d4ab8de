"""The thread that runs the flows of many keyspaces over one client."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event
from typing import Any

import pytest

from celery_sticky.errors import RecordUnusable, StoreUnavailable
from celery_sticky.membership.clerk import URGENT
from celery_sticky.ownership.events import ViewChanged
from celery_sticky.platform import seat as seats
from celery_sticky.platform.flow_thread import FlowThread
from celery_sticky.platform.seat import Flow, Seat
from celery_sticky.stores.base import Heartbeat, Reading, Store
from celery_sticky.stores.flow import Aside, Pause, Watch, ask
from celery_sticky.stores.memory.shared import MemoryShared
from celery_sticky.stores.memory.store import MemoryServer, MemoryStore, memory_server
from celery_sticky.stores.shared import OwnClient, SharedClient
from celery_sticky.testing.store_contract import first_view
from celery_sticky.testing.waiting import wait_until


class Asked(MemoryStore):
    """A store that notes who asked what, and fails as it is told."""

    def __init__(self, world: World, keyspace: str) -> None:
        super().__init__(world.server, keyspace)
        self._world = world

    def read(self) -> Reading:
        self._world.asks(self._keyspace, "read")
        return super().read()

    def heartbeat(self, incarnation: str, *, announce: bool = True) -> Heartbeat:
        self._world.asks(self._keyspace, "heartbeat")
        return super().heartbeat(incarnation, announce=announce)


class World(MemoryShared):
    """A client of a memory server; and how the server is."""

    def __init__(self) -> None:
        self.name = f"flows-{time.monotonic_ns()}"
        super().__init__(self.name, "p")
        self.server: MemoryServer = memory_server(self.name, "p")
        self.asked: list[tuple[str, str]] = []
        self.silence = 0.0
        """Seconds that each request takes, because the server does not answer."""
        self.unusable: set[str] = set()
        """Keyspaces whose record cannot be used."""
        self.watches = 0
        self.closed = False

    def store(self, keyspace: str) -> Asked:
        return self.opened(Asked(self, keyspace))

    def asks(self, keyspace: str, verb: str) -> None:
        self.asked.append((keyspace, verb))
        if self.silence:
            time.sleep(self.silence)
            raise StoreUnavailable("no answer")
        if keyspace in self.unusable:
            raise RecordUnusable("not ours")

    def watch(self, timeout: float) -> Mapping[Any, Sequence[Any]]:
        self.watches += 1
        return super().watch(timeout)

    def close(self) -> None:
        self.closed = True
        super().close()


class Routine:
    """What a test has a keyspace do. `steps` makes the flow of a turn."""

    def __init__(self, keyspace: str, steps: Callable[[Routine], Flow]) -> None:
        self.keyspace, self._steps = keyspace, steps
        self.did: list[Any] = []
        self.errors: list[tuple[float, Exception]] = []
        self.crashes = 0
        self.is_over = False

    def open(self, client: SharedClient) -> Store:
        return client.store(self.keyspace)

    def turn(self) -> Flow:
        return self._steps(self)

    def perform(self, request: Any, store: Store) -> object:
        return request(store)

    def failed(self) -> None:
        self.crashes += 1

    def ended(self) -> None:
        self.is_over = True


def reads(seconds: float) -> Callable[[Routine], Flow]:
    """Listen, read once, then wait `seconds` for signals; after an error, pause as a member does."""

    def turn(routine: Routine) -> Flow:
        try:
            routine.did.append((yield from ask(Store.read)))
            heard = yield Watch(seconds)
            routine.did.append(heard)
        except StoreUnavailable as error:
            routine.errors.append((time.monotonic(), error))
            yield Pause(0.1)

    return turn


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


class Run:
    """Runs a routine in each of many keyspaces, in one thread."""

    def __init__(self, world: World) -> None:
        self._thread: FlowThread[Store] = FlowThread(lambda: world, urgent=URGENT)
        self.seats: list[Seat[Store]] = []

    def __call__(self, steps: Callable[[Routine], Flow], count: int = 1) -> list[Routine]:
        made = [Routine(f"k{number}", steps) for number in range(count)]
        seats = [self._thread.seat(routine) for routine in made]
        self.seats.extend(seats)
        for seat in seats:
            self._thread.add(seat)
        return made


@pytest.fixture
def run(world: World) -> Iterator[Run]:
    run = Run(world)
    yield run
    world.silence = 0.0
    for seat in run.seats:
        seat.stop()
    wait_until(lambda: all(seat.ended for seat in run.seats), 10, "all have ended")
    assert world.closed or not world.asked, "with the last one, the client is closed"


def opens(door: Event) -> Callable[[], None]:
    """Return a call that takes until the door is open."""

    def wait() -> None:
        assert door.wait(20)

    return wait


def test_a_hundred_keyspaces_take_one_thread(world: World, run: Run) -> None:
    before = len(threads())
    routines = run(reads(30.0), 100)
    wait_until(lambda: all(len(routine.did) >= 2 for routine in routines), 10, "all have listened")
    assert len(threads()) == before + 1


def threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def test_signals_reach_their_keyspace_alone(world: World, run: Run) -> None:
    routines = run(reads(30.0), 3)
    wait_until(lambda: all(len(routine.did) >= 3 for routine in routines), 10, "all wait")
    writer = MemoryStore(world.server, "k1")
    first_view(writer)
    wait_until(lambda: (ViewChanged(1),) in routines[1].did, 10, "it hears")
    for deaf in (routines[0], routines[2]):
        assert not [heard for heard in deaf.did if isinstance(heard, tuple) and heard]


def test_a_wake_ends_the_wait_of_one_keyspace(world: World, run: Run) -> None:
    routines = run(reads(30.0), 3)
    wait_until(lambda: all(len(routine.did) >= 3 for routine in routines), 10, "all wait")
    counts = [len(routine.did) for routine in routines]
    run.seats[2].wake()
    wait_until(lambda: len(routines[2].did) > counts[2], 5, "it goes on")
    assert [len(routine.did) for routine in routines[:2]] == counts[:2]


def test_heartbeats_go_before_what_others_ask(world: World, run: Run) -> None:
    go = Event()

    def turn(routine: Routine) -> Flow:
        yield Aside(opens(go))  # all ask at once when the door opens
        if routine.keyspace == "k9":
            yield from ask(Store.heartbeat, "a-1", announce=False)
        else:
            yield from ask(Store.read)
            yield from ask(Store.read)
        yield Pause(30.0)

    world.silence = 0.05
    run(turn, 10)
    wait_until(lambda: all(seat._state is seats.State.AWAY for seat in run.seats), 5, "all wait")
    world.silence = 0.0
    go.set()
    wait_until(lambda: len(world.asked) == 19, 10, "all have asked")
    place = world.asked.index(("k9", "heartbeat"))
    assert place <= 9, f"before anybody's second read: {world.asked}"


def test_a_silent_server_costs_one_timeout_for_all_keyspaces(world: World, run: Run) -> None:
    """Guards: 100 timeouts in a row, after which the heartbeats of the last keyspaces come too late."""
    routines = run(reads(0.05), 50)
    wait_until(lambda: all(len(routine.did) >= 4 for routine in routines), 10, "all read now and then")
    world.asked.clear()
    begun = time.monotonic()
    world.silence = 0.3
    wait_until(lambda: all(len(routine.errors) >= 3 for routine in routines), 20, "all have failed three times")
    assert time.monotonic() - begun < 5.0, "50 keyspaces that fail three times each, one after the other: 45 s"
    attempts = len(world.asked)
    assert attempts < 20, attempts
    assert {str(error) for routine in routines for _, error in routine.errors} == {"no answer"}
    world.silence = 0.0
    counts = [len(routine.did) for routine in routines]
    wait_until(
        lambda: all(len(routine.did) > count for routine, count in zip(routines, counts, strict=True)), 5, "all go on"
    )


def test_a_record_that_cannot_be_used_fails_its_own_keyspace_alone(world: World, run: Run) -> None:
    world.unusable = {"k0"}
    routines = run(reads(0.05), 5)
    wait_until(lambda: len(routines[0].errors) >= 3, 10, "it has failed often")
    wait_until(lambda: all(len(routine.did) >= 6 for routine in routines[1:]), 10, "the others go on")
    assert not [error for routine in routines[1:] for error in routine.errors]


def test_what_is_done_aside_holds_up_its_own_keyspace_alone(world: World, run: Run) -> None:
    done = Event()

    def turn(routine: Routine) -> Flow:
        if routine.keyspace == "k0":
            yield Aside(opens(done))
            routine.did.append("after")
            yield Pause(30.0)
        else:
            yield from reads(0.02)(routine)

    routines = run(turn, 3)
    wait_until(lambda: all(len(routine.did) >= 10 for routine in routines[1:]), 10, "the others go on")
    assert routines[0].did == []
    done.set()
    wait_until(lambda: routines[0].did == ["after"], 5, "it goes on")


def test_an_error_of_what_is_done_aside_is_raised_in_the_flow(run: Run) -> None:
    def fail() -> None:
        raise LookupError("nothing there")

    def turn(routine: Routine) -> Flow:
        try:
            yield Aside(fail)
        except LookupError as error:
            routine.did.append(str(error))
        yield Pause(30.0)

    [routine] = run(turn)
    wait_until(lambda: routine.did == ["nothing there"], 5, "it is raised")


def test_an_unexpected_error_ends_one_turn_of_one_keyspace(
    world: World, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seats, "ERROR_PAUSE", 0.05)

    def turn(routine: Routine) -> Flow:
        if routine.keyspace == "k0" and not routine.crashes:
            raise RuntimeError("nobody expects this")
        yield from reads(0.02)(routine)

    routines = run(turn, 2)
    wait_until(lambda: all(len(routine.did) >= 4 for routine in routines), 10, "both go on")
    assert [routine.crashes for routine in routines] == [1, 0]


def test_a_broken_subscription_is_told_to_all_that_listen_and_made_again(world: World, run: Run) -> None:
    routines = run(reads(30.0), 3)
    wait_until(lambda: all(len(routine.did) >= 3 for routine in routines), 10, "all wait")
    world.server.cut()
    wait_until(lambda: all(len(routine.errors) == 1 for routine in routines), 10, "all know")
    first_view(MemoryStore(world.server, "k2"))
    wait_until(lambda: len(routines[2].did) >= 4, 10, "it listens again")
    assert Counter(len(routine.errors) for routine in routines) == {1: 3}


def test_waiting_keyspaces_do_nothing(world: World, run: Run) -> None:
    routines = run(reads(30.0), 20)
    wait_until(lambda: all(len(routine.did) >= 3 for routine in routines), 10, "all wait")
    time.sleep(0.05)
    before = world.watches, len(world.asked)
    time.sleep(0.5)
    assert (world.watches, len(world.asked)) == before


def test_a_driver_without_a_shared_client_serves_one_keyspace(world: World) -> None:
    own = OwnClient(store=world.store)
    thread: FlowThread[Store] = FlowThread(lambda: own)
    routine = Routine("k0", reads(30.0))
    seat = thread.seat(routine)
    thread.add(seat)
    wait_until(lambda: len(routine.did) >= 3, 10, "it waits")
    first_view(MemoryStore(world.server, "k0"))
    wait_until(lambda: (ViewChanged(1),) in routine.did, 10, "it hears")
    seat.stop()
    wait_until(lambda: routine.is_over and seat.ended, 5, "it ends")
    routine = Routine("k0", reads(30.0))
    seat = thread.seat(routine)
    thread.add(seat)
    wait_until(lambda: routine.did, 10, "the thread starts again with the next one")
    seat.stop()
    wait_until(lambda: seat.ended, 5, "it ends")
