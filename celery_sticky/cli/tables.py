"""Output of the commands: JSON for machines, rich tables for people."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

Facts = Mapping[str, Any]
WIDTH_IN_A_FILE = 120

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
keyspace_option = click.option("--keyspace", metavar="NAME", help="This keyspace only.")


def show(context: Any, facts: Facts, draw: Callable[[Any], Iterable[RenderableType]], *, as_json: bool) -> None:
    """Print the facts, as JSON or as drawn by `draw`."""
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    console = Console(no_color=context.no_color, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_IN_A_FILE
    for part in draw(facts):
        console.print(part)


def table(*columns: str, right: Iterable[str] = (), title: str = "") -> Table:
    """Return an empty table; columns in `right` hold numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=title or None, title_justify="left")
    for column in columns:
        # An id is there to be copied.
        whole = column == "ID"
        made.add_column(column, justify="right" if column in right else "left", overflow="fold", no_wrap=whole)
    return made


def problems(facts: Facts) -> Iterable[RenderableType]:
    """Draw the problems that were found."""
    for text in facts["problems"]:
        yield Text(f"✗ {text}", style="bold red")


def seconds(value: float | None) -> str:
    """Return a duration for people."""
    if value is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if value >= 2 * size:
            return f"{value / size:.0f} {unit}"
    return f"{value:.1f} s"


def moment(at: float | None) -> str:
    """Return a time of the wall clock for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else "-"


def dash(value: object) -> str:
    """Return a value for people: a dash if it is not known."""
    return "-" if value is None or value == "" else str(value)


def total(numbers: Iterable[int | None]) -> int | None:
    """Return the sum, or None if one of the numbers is unknown."""
    known = list(numbers)
    return None if None in known else sum(number for number in known if number is not None)


def age_of(at: float | None, now: float) -> float | None:
    """Return how many seconds ago something was, at least 0 because clocks of machines differ; None if unknown."""
    return max(0.0, now - at) if at is not None else None
