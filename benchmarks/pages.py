"""Puts figures into a page, between the marks that name their section."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Table


def fill(page: Path, section: str, tables: Sequence[Table], about: str) -> None:
    """Replace what stands between the marks of a section by its tables and their conditions.

    Raises:
        SystemExit: the page has no such marks.
    """
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- figures: {section} -->\n", f"<!-- end: {section} -->\n"
    if begin not in text or end not in text:
        raise SystemExit(f"{page} has no lines {begin.strip()} and {end.strip()}: add them where the figures belong")
    before, after = text[: text.index(begin) + len(begin)], text[text.index(end) :]
    figures = "\n".join(table.markdown() for table in tables)
    page.write_text(f"{before}\n{figures}\n{about}\n\n{after}", encoding="utf-8")
