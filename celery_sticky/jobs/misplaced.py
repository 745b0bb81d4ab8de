"""Jobs stored where nobody looks: in slots of a placed keyspace, or by their keys in a keyspace that is not placed.

Jobs also end up there when a keyspace becomes placed, or stops being placed.
"""

from __future__ import annotations


def as_plain(keyspace: str) -> str:
    """Return the error, and its fix, for a job in a slot of a placed keyspace."""
    return (
        f"it was dispatched before {keyspace!r} became a placed keyspace, or by an app that does not declare it so: "
        f"declare it alike in every app, call sticky.jobs.shutdown({keyspace!r}) and "
        f"sticky.jobs.reopen({keyspace!r}), then dispatch the job again"
    )


def as_placed(keyspace: str) -> str:
    """Return the error, and its fix, for jobs stored by their keys in a keyspace that is not placed."""
    return (
        f"jobs that are stored by their keys do not run: they were dispatched while {keyspace!r} was a placed "
        f"keyspace, or by an app that declares it as one. Declare it alike in every app. Remove these jobs with "
        f"`celery sticky jobs forget --keyspace {keyspace}`, and dispatch them again"
    )
