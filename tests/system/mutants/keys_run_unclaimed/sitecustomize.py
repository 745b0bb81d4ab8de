"""Python runs this at its start where it is on the path: it takes a rule out of a worker.

A task of a placed key starts without the key being claimed.
"""

from __future__ import annotations

import sys

if "-m" in sys.orig_argv:  # the workers, and the command that starts them
    from celery_sticky.delivery.gate import Entry
    from celery_sticky.delivery.key_claims import KeyClaims

    prepare = KeyClaims.prepare

    def unclaimed(claims: KeyClaims, entry: Entry) -> None:
        """Let the entry start at once."""
        prepare(claims, entry)
        entry.pending = False

    KeyClaims.prepare = unclaimed  # type: ignore[method-assign,assignment]
