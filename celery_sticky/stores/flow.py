"""Flows: how a loop sends requests to a store without doing any I/O itself.

A flow yields its requests. Its runner makes them one after the other and sends back the answer or the error, either in
a thread or step by step. The arguments of a request are fixed when it is yielded, however late it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

Client = TypeVar("Client")
"""A store's client."""
Answer = TypeVar("Answer")
Given = ParamSpec("Given")

Request = Callable[[Client], object]
Flow = Generator[Callable[[Client], object], Any, Answer]


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


def run_flow(flow: Flow[Client, Answer], client: Client) -> Answer:
    """Run a flow to its end. An error from a request is raised inside the flow, which may handle it and continue."""
    try:
        request = next(flow)
        while True:
            try:
                answer = request(client)
            except Exception as error:
                request = flow.throw(error)
            else:
                request = flow.send(answer)
    except StopIteration as end:
        result: Answer = end.value
        return result
