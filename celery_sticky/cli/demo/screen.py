"""The demo's display: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from celery_sticky.cli.demo.stage import Scene
from celery_sticky.cli.tables import table

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta", "bright_green")
REST = 21
"""Lines of the picture without the news, at 80 columns."""
LEGEND = "Each shop is a key: the colour shows its owner, the number its waiting orders."
LINE_EVERY = 2.0

Draw = Callable[[Scene], None]


@contextmanager
def screen(console: Console) -> Iterator[Draw]:
    """Yield a function that draws a scene."""
    if not console.is_terminal:
        yield Lines(console).draw
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda scene: live.update(picture(scene, console.size), refresh=True)


class Lines:
    """Plain lines: the news, and every 2 s the number of slots of each worker."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = 0
        self._next = 0.0

    def draw(self, scene: Scene) -> None:
        """Print new lines."""
        for at, text in scene.news[self._told :]:
            self._console.print(f"{at:5.1f} s  {text}", soft_wrap=True)
        self._told = len(scene.news)
        if scene.elapsed >= self._next and scene.published:
            self._next = scene.elapsed + LINE_EVERY
            shares = ", ".join(f"{name} {scene.slots.get(name, 0)}" for name in scene.workers)
            done = sum(scene.done.values())
            line = f"slots: {shares} · orders: {done} charged of {scene.published} sent"
            self._console.print(f"{scene.elapsed:5.1f} s    {line}", soft_wrap=True)


def picture(scene: Scene, size: ConsoleDimensions) -> RenderableType:
    """Return the whole picture, which fits a terminal of 80 columns and 24 lines."""
    width = size.width
    colours = dict(zip(scene.workers, COLOURS, strict=False))
    done = sum(scene.done.values())
    head = Table.grid()
    counts = f"   {scene.elapsed:4.1f} s   {done} orders charged, {scene.published} sent"
    head.add_row(Text.assemble(("celery-sticky demo", "bold"), counts))
    head.add_row(ProgressBar(total=scene.total, completed=done, width=min(width, 80)))
    return Group(
        head,
        _workers(scene, colours),
        Text("\n" + LEGEND, style="dim"),
        _shops(scene, colours, width),
        _news(scene, width, max(2, size.height - REST)),
    )


def _workers(scene: Scene, colours: dict[str, str]) -> Table:
    made = table("worker", "", "slots", "shops", "charged", "charging now", right=("slots", "shops", "charged"))
    made.columns[-1].no_wrap = True
    made.columns[-1].overflow = "ellipsis"
    for name, does in scene.workers.items():
        shops = sum(owner == name for owner in scene.owners.values())
        made.add_row(
            Text(f"■ {name}", style=colours[name]),
            Text(does, style="bold red" if does == "killed" else ""),
            str(scene.slots.get(name, 0)),
            str(shops),
            str(scene.done.get(name, 0)),
            Text(", ".join(scene.running.get(name, ()))),
        )
    return made


def _shops(scene: Scene, colours: dict[str, str], width: int) -> Table:
    columns = max(2, min(5, width // 20))
    grid = Table.grid(padding=(0, 1))
    for _ in range(columns):
        grid.add_column(width=width // columns - 1, no_wrap=True, overflow="ellipsis")
    cells = []
    for shop, owner in scene.owners.items():
        alive = owner is not None and scene.workers.get(owner) != "killed"
        style = colours.get(owner or "", "white") if alive else "dim strike"
        cells.append(Text.assemble((f"{scene.left[shop]:2d} " if scene.left[shop] else " · ", "dim"), (shop, style)))
    rows = -(-len(cells) // columns)
    for row in range(rows):
        grid.add_row(*cells[row::rows])
    return grid


def _news(scene: Scene, width: int, most: int) -> Text:
    lines = [f"{at:5.1f} s  {text}" for at, text in scene.news[-min(most, 10) :]]
    return Text("\n" + "\n".join(line[: width - 1] for line in lines))
