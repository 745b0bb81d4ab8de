"""Kinds of tasks that senders mix into the load all the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from celery_sticky.cli.verify.app import RAISE, RECORD, RETRY
from celery_sticky.cli.verify.faults.base import Fault

if TYPE_CHECKING:
    from celery_sticky.cli.verify.load import Sender


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedIn(Fault):
    """A kind of task. It has no occurrences in a plan."""

    mixed_in: ClassVar[bool] = True

    @classmethod
    def send(cls, sender: Sender, key: str, number: int, seconds: float) -> None:
        """Send one, with the ordinary `key`, or with the `number` of a key that is not checked for order."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Eta(MixedIn):
    """A task with an ETA."""

    name: ClassVar[str] = "eta"

    @classmethod
    def send(cls, sender: Sender, key: str, number: int, seconds: float) -> None:
        """Send a task that is due a little later."""
        sender.send(RECORD, f"eta{number}", seconds, countdown=sender.draw.uniform(0.5, 3.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry(MixedIn):
    """A task that retries."""

    name: ClassVar[str] = "retry"

    @classmethod
    def send(cls, sender: Sender, key: str, number: int, seconds: float) -> None:
        """Send a task that retries once."""
        sender.send(RETRY, f"retry{number}", seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raise(MixedIn):
    """A task that raises."""

    name: ClassVar[str] = "raise"

    @classmethod
    def send(cls, sender: Sender, key: str, number: int, seconds: float) -> None:
        """Send a task that fails at its end."""
        sender.send(RAISE, key, seconds)
