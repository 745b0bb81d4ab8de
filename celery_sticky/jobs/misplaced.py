"""Jobs that are written down where nobody looks: in slots where keys are placed, or by their keys where they are not.

So are those that were left when a keyspace became placed, or plain again.
"""

from __future__ import annotations


def as_plain(keyspace: str) -> str:
    """Return what is wrong with a job in a slot of a keyspace that directs keys, and what to do."""
    return (
        f"it was dispatched as in a plain keyspace, before {keyspace!r} placed its keys or by an app that does not "
        f"declare that: declare it alike everywhere, call sticky.jobs.shutdown({keyspace!r}) and "
        f"sticky.jobs.reopen({keyspace!r}), then dispatch anew"
    )


def as_placed(keyspace: str, count: int) -> str:
    """Return what is wrong with jobs that are written down by their keys in a plain keyspace, and what to do."""
    return (
        f"{count} keys have jobs that were dispatched while {keyspace!r} placed its keys, or by an app that declares "
        "that, and that do not run: declare it as it was, start a worker, call "
        f"sticky.jobs.shutdown({keyspace!r}), then declare it as it is to be, sticky.jobs.reopen({keyspace!r}), and "
        "dispatch anew"
    )
