"""Tables of figures, as text for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Table:
    """One table of the report."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """Return it as Markdown."""
        lines = [f"### {self.title}", "", _row(self.columns), _row(["---"] * len(self.columns))]
        lines += [_row(row) for row in self.rows]
        lines += ["", *(f"{note}\n" for note in self.notes)] if self.notes else [""]
        return "\n".join(lines)


@dataclass(slots=True)
class Report:
    """The findings of a run."""

    tables: list[Table] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)

    def ratio(self, name: str, value: float) -> None:
        """Record the ratio of our figure to that of stock Celery."""
        self.ratios[name] = round(value, 4)

    def as_json(self, machine: dict[str, str]) -> dict[str, Any]:
        """Return everything as plain JSON."""
        tables = [
            {"title": t.title, "columns": list(t.columns), "rows": [list(r) for r in t.rows], "notes": t.notes}
            for t in self.tables
        ]
        return {"machine": machine, "ratios": self.ratios, "tables": tables}


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return the median, with the lowest and highest if there are several values."""
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def machine(server: str) -> dict[str, str]:
    """Return the conditions that the figures depend on."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return {
        "commit": commit.stdout.strip() or "unknown",
        "processor": f"{os.cpu_count()} x {_processor()}",
        "python": platform.python_version(),
        "celery": version("celery"),
        "server": server,
        "load average": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
