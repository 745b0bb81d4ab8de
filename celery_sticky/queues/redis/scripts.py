"""The Lua scripts beside this file, each one atomic method; the head of a script says what it takes and returns.

A line `-- include <name>` is replaced by the text of `<name>.lua`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Self

from celery_sticky.redis_resp import Argument, pack

_INCLUDE = re.compile(r"^ *-- include (\w+)$", re.MULTILINE)


def _text(name: str) -> str:
    return files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Script:
    """One script and the digest under which a server caches it."""

    source: bytes
    digest: str

    @classmethod
    def load(cls, verb: str) -> Self:
        """Read `<verb>.lua` with its includes."""
        source = _INCLUDE.sub(lambda found: _text(found[1]), _text(verb)).encode()
        return cls(source, hashlib.sha1(source, usedforsecurity=False).hexdigest())

    def request(self, keys: Sequence[Argument], arguments: Sequence[Argument]) -> bytes:
        """Return the request that runs the script by its digest, for a server that has it cached."""
        return pack("EVALSHA", self.digest, len(keys), *keys, *arguments)

    def full_request(self, keys: Sequence[Argument], arguments: Sequence[Argument]) -> bytes:
        """Return the request that carries the script itself; the server caches it."""
        return pack("EVAL", self.source, len(keys), *keys, *arguments)
