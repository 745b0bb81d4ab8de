"""The documentation pages, and the parts of them that tests check: code blocks, commands, links, tables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
_FENCE = re.compile(r"^```(\S*)\s*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    line: int
    """The line on which its text begins."""


def name_of(page: Path) -> str:
    """Return the name of a page for test ids."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the blocks of a page in these languages, in order."""
    text = page.read_text(encoding="utf-8")
    found = [Block(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in _FENCE.finditer(text)]
    return [block for block in found if block.language in languages]


def commands(page: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and words of each command in console blocks, without leading `VARIABLE=value`."""
    for block in blocks(page, "console"):
        for offset, line in enumerate(block.text.splitlines()):
            if line.startswith("$ "):
                words = shlex.split(line[2:], comments=True)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words.pop(0)
                yield block.line + offset, words


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Return the targets of the links of a page, except links to the web."""
    return [link for link in _LINK.findall(prose(page)) if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(prose(page)))
    return {heading.replace(" ", "-") for heading in plain}


def rows(text: str) -> Iterable[list[str]]:
    """Yield the cells of each table row in a text, including headers but not separator lines."""
    for line in text.splitlines():
        if line.startswith("|") and not re.fullmatch(r"[|\s:-]+", line):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]
