"""Runs the Python blocks of a page in order, in one namespace: `python -m harness.page_run <page> <broker>`."""

from __future__ import annotations

import doctest
import sys
from pathlib import Path
from typing import Any

from harness.pages import blocks

BROKER = "redis://localhost:6379/0"
"""The broker in the code of the pages. A run replaces it with its own broker."""


def run(page: Path, broker: str) -> None:
    """Run the blocks of the page. An error in a block ends the run."""
    namespace: dict[str, Any] = {"__name__": "shop"}
    for block in blocks(page, "python", "pycon"):
        text = block.text.replace(BROKER, broker)
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + text, str(page), "exec"), namespace)
            continue
        examples = doctest.DocTestParser().get_doctest(text, namespace, page.name, str(page), block.line - 1)
        if doctest.DocTestRunner().run(examples, clear_globs=False).failed:
            sys.exit(1)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
