"""Writes the first ownership document of a keyspace, so that its first workers need not wait."""

from __future__ import annotations

from typing import Any

from celery_sticky.errors import StickyError
from celery_sticky.keys import HASH_NAME
from celery_sticky.ownership import changes
from celery_sticky.stores.base import Store

WITHIN = 2.0
"""Seconds within which the document must be written. So soon, nobody owns a slot by another first document."""


def write_first(
    store: Store,
    slots: int,
    *,
    force: bool = False,
    hash_name: str = HASH_NAME,
    epochs_outlive_store: bool = True,
) -> dict[str, Any]:
    """Write a document without members, unless there is one already.

    `epochs_outlive_store` is what the broker's driver says (`Guarantees`).

    Raises:
        StickyError: another process changed the document at the same time, or the store was too slow.
    """
    reading = store.read()
    old = reading.view
    if old is not None and not force:
        return {"written": False, "slots": old.slots, "version": old.version}
    fresh = changes.fresh(
        slots=slots,
        hash=hash_name,
        generation=changes.generation_after(old.generation if old else 0, reading.clock),
        version=old.version + 1 if old else 1,
        store_id=reading.store_id,
        epochs=changes.epochs_after(old.max_epoch if old else 0, reading.clock, outlive_store=epochs_outlive_store),
    )
    if not store.swap(old, fresh, None, reading.clock + WITHIN):
        raise StickyError(
            "another process changed the document at the same time, or the store was slow: run the command again"
        )
    return {"written": True, "slots": slots, "version": fresh.version}
