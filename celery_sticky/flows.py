"""Flows: loops that do no I/O themselves. A flow yields requests, and is sent each answer or has the error thrown in.

The runner of a flow performs its requests one after the other: a thread with a client, or a simulated world step by
step. Both run the same flow.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")


def run_flow(flow: Generator[Request, Any, Result], perform: Callable[[Request], object]) -> Result:
    """Run a flow to its end. An error from a request is raised inside the flow, which may handle it and continue."""
    try:
        request = next(flow)
        while True:
            try:
                answer = perform(request)
            except Exception as error:
                request = flow.throw(error)
            else:
                request = flow.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
