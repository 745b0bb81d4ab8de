"""The threads of a job host, and the calls that wait for one. All but the calls themselves is done in the event loop.

Each kind of call has threads of its own: a stop never waits behind starts that hang, nor a start behind notifications.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from threading import local
from typing import Any

from celery_sticky.jobs.host.tasks import RUN
from celery_sticky.jobs.marks import LOOP, Marks

KINDS = ("start", "notify", "stop")
"""The kinds of calls."""


class HandlerThreads:
    """Threads for handler calls that are not async: at most `most` calls of each kind run at a time."""

    def __init__(self, most: int, marks: Marks) -> None:
        self._marks, self._here, numbers = marks.written, local(), count(LOOP + 1)
        number_it = partial(_number, self._here, numbers)
        self._pool = ThreadPoolExecutor(len(KINDS) * most, "job", number_it)
        self._lanes = {kind: Lane(most) for kind in KINDS}

    def lane(self, kind: str) -> Lane:
        """Return where the calls of this kind wait."""
        return self._lanes[kind]

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a thread and return its result. Take a place in a lane before, and leave it after."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._marked, RUN.get(), function, *args)

    def shutdown(self) -> None:
        """Wait for the calls under way and end the threads."""
        self._pool.shutdown()

    def _marked(self, run: int, function: Callable[..., Any], *args: Any) -> Any:
        self._marks[self._here.number] = run
        try:
            return function(*args)
        except StopIteration as exc:  # a future cannot hold StopIteration and would never complete
            raise RuntimeError("StopIteration was raised") from exc
        finally:
            self._marks[self._here.number] = 0


class Lane:
    """The places for calls of one kind, and the calls that wait for a place, in the order in which they came."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: dict[asyncio.Future[bool], None] = {}

    def enter(self) -> asyncio.Future[bool]:
        """Return a future that becomes True when the call has a place, and False when it was withdrawn."""
        place = asyncio.get_running_loop().create_future()
        if self._free:
            self._free -= 1
            place.set_result(True)
        else:
            self._waiting[place] = None
        return place

    def withdraw(self, place: asyncio.Future[bool]) -> None:
        """Take back a call that waits; do nothing if it has a place already."""
        if place in self._waiting:
            del self._waiting[place]
            place.set_result(False)

    def leave(self) -> None:
        """Give the place to the next call."""
        while self._waiting:
            place = next(iter(self._waiting))
            del self._waiting[place]
            if not place.done():  # else the task that waited was cancelled
                place.set_result(True)
                return
        self._free += 1


def _number(here: local, numbers: Iterator[int]) -> None:
    here.number = next(numbers)
