"""The courier's line to the broker: it performs the requests of the courier's flow, in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from celery_sticky.delivery.requests import BrokerRequest, Close, Connect, Flow, Pause, Request, Unexpected
from celery_sticky.flows import run_flow
from celery_sticky.platform.native import start_thread
from celery_sticky.queues.base import SlotQueues

logger = logging.getLogger("celery_sticky.courier")


class Line(Protocol):
    """Performs the requests of a flow, one after the other."""

    def start(self, flow: Flow[None]) -> None:
        """Begin to perform the requests of a flow."""

    def wake(self) -> None:
        """Make the current `Idle`, or the next one, end at once. Any thread may call this."""

    def join(self, timeout: float) -> None:
        """Wait until the flow has ended, at most `timeout` seconds."""


class ThreadedLine:
    """A thread with a client of the broker. All calls of the client, except `wake`, happen in that thread."""

    def __init__(self, connect: Callable[[], SlotQueues]) -> None:
        self._connect = connect
        self._queues: SlotQueues | None = None
        self._thread: threading.Thread | None = None

    def start(self, flow: Flow[None]) -> None:
        """See `Line.start`."""
        self._thread = start_thread(partial(run_flow, flow, self._perform), "sticky-courier")

    def wake(self) -> None:
        """See `Line.wake`."""
        if (queues := self._queues) is not None:
            queues.wake()

    def join(self, timeout: float) -> None:
        """See `Line.join`."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _perform(self, request: Request) -> object:
        if isinstance(request, BrokerRequest):
            assert self._queues is not None, "the flow connects first"
            return request(self._queues)
        match request:
            case Connect():
                self._queues = self._connect()
            case Close():
                queues, self._queues = self._queues, None
                if queues is not None:
                    queues.close()
            case Pause(seconds):
                time.sleep(seconds)
            case Unexpected(error):
                text = "the courier met an unexpected error; it reconnects and opens its slots again"
                logger.error(text, exc_info=error)
        return None
