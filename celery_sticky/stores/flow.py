"""Flows: how a loop sends requests to a store without doing any I/O itself.

A flow yields its requests. Its runner makes them one after the other and sends back the answer or the error: a thread
that runs the flows of many keyspaces (`platform.flow_thread`), or a test step by step. The arguments of a request are
fixed when it is yielded, however late it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from celery_sticky.flows import run_flow

Client = TypeVar("Client")
"""A store's client."""
Answer = TypeVar("Answer")
Given = ParamSpec("Given")

Request = Callable[[Client], object]
Flow = Generator[Callable[[Client], object], Any, Answer]


@dataclass(frozen=True, slots=True)
class Watch:
    """Wait for signals of the store, and return them; the first one subscribes and returns at once.

    It ends early when another thread has work for the flow.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait, whatever happens meanwhile."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Aside:
    """Call something that may take long, in another thread: this flow waits for it, and no other flow does."""

    call: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to a store: one of its methods with arguments."""

    verb: str
    given: tuple[Any, ...]
    named: Mapping[str, Any]

    def __call__(self, client: object) -> object:
        """Make the request."""
        return getattr(client, self.verb)(*self.given, **self.named)

    def __str__(self) -> str:
        return self.verb


def ask(
    verb: Callable[Concatenate[Client, Given], Answer], *given: Given.args, **named: Given.kwargs
) -> Flow[Client, Answer]:
    """Make one request; `verb` is a method of the store's contract, such as `JobStore.look`."""
    answer: Answer = yield Asked(verb.__name__, given, named)
    return answer


def serve(flow: Flow[Client, Answer], client: Client) -> Answer:
    """Run a flow to its end with one client of the store."""
    return run_flow(flow, lambda request: request(client))
