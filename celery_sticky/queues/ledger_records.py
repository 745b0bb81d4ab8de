"""How a server records runs in its ledger, and the deliveries that hold them."""

from __future__ import annotations

from hashlib import blake2b

from celery_sticky.queues.base import Tag

LONGEST = 255
"""Bytes of a run's name; a longer run is recorded by its digest."""
DIGEST = b"\xff"
"""The first byte of a digest. No text in UTF-8 has it."""


def run_name(run: str) -> bytes:
    """Return the name under which a run is recorded: at most `LONGEST` bytes, whatever id its task has."""
    name = run.encode("utf-8", "surrogatepass")
    return name if len(name) <= LONGEST else DIGEST + blake2b(name, digest_size=32).hexdigest().encode()


def tag_text(tag: Tag) -> str:
    """Return a tag as text."""
    return f"{tag.number}:{tag.trip}"


def tag_of(text: bytes) -> Tag:
    """Return the tag from its text."""
    number, _, trip = text.decode().partition(":")
    return Tag(int(number), trip)
