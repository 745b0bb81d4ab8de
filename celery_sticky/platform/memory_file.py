"""Memory that processes share by a descriptor, with nothing left on disk."""

from __future__ import annotations

import os
import tempfile


def memory_file(name: str, size: int) -> int:
    """Return the descriptor of a file of `size` zero bytes that lives in memory and has no place in a folder."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name)
    else:
        descriptor, path = tempfile.mkstemp(prefix=f"{name}-")
        os.unlink(path)
    os.truncate(descriptor, size)
    return descriptor
