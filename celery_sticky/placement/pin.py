"""A pin that a worker has set, as the application holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True)
class Pin:
    """One pin of a key: what `sticky.pin` returns.

    It holds the key until it is released, a later pin of the key takes its place, or the worker loses its lease. So
    when a client has reconnected, and its new connection has pinned the key, the end of the old one changes nothing.

    ```python
    with sticky.pin("client-7", "clients") as pin:
        ...
    ```
    """

    key: str
    keyspace: str
    worker: str
    """The node name of the worker that the key is pinned to."""
    token: int
    """Higher than that of every earlier pin in the keyspace."""
    _release: Callable[[], bool] = field(repr=False, compare=False)

    def release(self) -> bool:
        """End this pin; return False if it does not hold the key any more.

        Any thread may call this, and it may be called again. A pin that is released is not reported as lost.

        Raises:
            StoreUnavailable: the pin may or may not have ended.
        """
        return self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release it; raises as `release` does."""
        self.release()
