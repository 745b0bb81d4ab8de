"""Calls that block, and their twins for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from celery_sticky.errors import BlockingCall

Owner = TypeVar("Owner")
Params = ParamSpec("Params")
Result = TypeVar("Result")


def blocking(verb: Callable[Concatenate[Owner, Params], Result]) -> Callable[Concatenate[Owner, Params], Result]:
    """Have a method of `sticky.jobs` refuse to block an event loop: it names its twin instead."""
    name = verb.__name__

    @wraps(verb)
    def call(self: Owner, /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        if asyncio._get_running_loop() is not None:
            raise BlockingCall(f"`sticky.jobs.{name}` would block the event loop: use `await sticky.jobs.a{name}(…)`")
        return verb(self, *args, **kwargs)

    return call


def twin(
    verb: Callable[Concatenate[Owner, Params], Result],
) -> Callable[Concatenate[Owner, Params], Coroutine[Any, Any, Result]]:
    """Return the twin of a method for coroutines: it runs the method in a thread."""
    name = verb.__name__

    @wraps(verb)
    async def call(self: Owner, /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        return await asyncio.to_thread(verb, self, *args, **kwargs)

    call.__name__ = f"a{name}"
    call.__qualname__ = verb.__qualname__.replace(name, call.__name__)
    call.__doc__ = f"Do what `{name}` does, in a thread, and raise as it does. A cancellation does not take it back."
    return call
