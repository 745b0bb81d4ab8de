"""The job host program: `python -m celery_sticky.execution.job_host`, started by a worker for its jobs.

It loads the app by name, as `celery -A` does, because a process forked from a threaded one may hang.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from celery import Celery, platforms, signals
from celery._state import set_default_app
from celery.app.utils import find_app

from celery_sticky.errors import StickyError
from celery_sticky.jobs.host.host import leave_signals_to_worker, run_host
from celery_sticky.jobs.host.surroundings import error_text
from celery_sticky.jobs.keeper.process import CONNECTION, LEASE, MARKS, REPORT
from celery_sticky.jobs.marks import Marks
from celery_sticky.jobs.wire import Unready, encode
from celery_sticky.membership.lease import Lease

logger = logging.getLogger("celery_sticky.jobs")


@dataclass(frozen=True, slots=True)
class HostOrders:
    """The orders of the worker that starts the program."""

    app: str
    """As in `celery -A`."""
    hostname: str
    """The worker's node name."""
    keyspaces: Mapping[str, int]
    """Name -> slots, in the order of the worker's lease."""
    parent: int
    """The worker's process id."""
    name: str
    """What its worker calls this host; part of the title of the process."""


def host_command(worker: Any, app: str, keyspaces: Mapping[str, int], name: str = "the job host") -> list[str]:
    """Return the command line that starts a job host of this process for a worker's keyspaces."""
    orders = HostOrders(app, worker.hostname, dict(keyspaces), os.getpid(), name)
    return [sys.executable, "-m", "celery_sticky.execution.job_host", json.dumps(asdict(orders))]


def main(orders: HostOrders) -> None:
    """Run the host; return when the worker tells it to end. Exits with status 1 if the app cannot be loaded."""
    leave_signals_to_worker()
    for descriptor in (CONNECTION, LEASE, REPORT, MARKS):
        os.set_inheritable(descriptor, False)  # programs started by jobs must not inherit them
    try:
        app = _load(orders)
        wiring = app.sticky_wiring
        wiring.lease, wiring.worker = Lease.attach(LEASE, orders.keyspaces), orders.hostname
        jobs, settings = wiring.declared.specs(orders.keyspaces, lambda: wiring.jobs), wiring.settings
    except BaseException as error:
        _set_up_log(Celery(set_as_current=False), orders.hostname)
        logger.exception("jobs: the job host cannot load the app %s", orders.app)
        with suppress(OSError):
            socket.socket(fileno=CONNECTION).sendall(encode(Unready(f"{orders.app}: {error_text(error)}")))
        sys.exit(1)
    run_host(
        jobs,
        socket.socket(fileno=CONNECTION),
        wiring.lease,
        orders.parent,
        report=REPORT,
        marks=Marks.attach(MARKS),
        threads=settings.job_threads,
        watchdog=settings.job_watchdog,
        stop_before=settings.job_stop_before,
        grace=settings.job_grace,
        logger_name=settings.job_logger,
    )


def _load(orders: HostOrders) -> Any:
    app = find_app(orders.app)
    app.set_current()
    set_default_app(app)  # also for handlers, which run in other threads
    app.loader.import_default_modules()
    app.finalize()
    _set_up_log(app, orders.hostname)
    signals.worker_process_init.send(sender=None)  # lets an app set up each process that runs its code
    platforms.set_process_title("celeryd", info=f"{orders.hostname} {orders.name.removeprefix('the ')}")
    return app


def _set_up_log(app: Any, hostname: str) -> None:
    multiprocessing.current_process().name = "JobHost"  # in the lines of the log
    # The worker leaves its logging options here for the children of its pool, which set up logging in the same way.
    app.log.setup(
        int(os.environ.get("CELERY_LOG_LEVEL") or logging.WARNING),
        os.environ.get("CELERY_LOG_FILE") or None,
        bool(os.environ.get("CELERY_LOG_REDIRECT")),
        os.environ.get("CELERY_LOG_REDIRECT_LEVEL") or "WARNING",
        hostname=hostname,
    )


# -- in the worker: the name of the app ---------------------------------------------------------


def app_name(app: Any, configured: str | None = None, arguments: Sequence[str] | None = None) -> str:
    """Return a name under which another process can load this app.

    This is `configured`, or the value of `celery -A` in this process, or the place of the app in a loaded module.

    Raises:
        StickyError: no name was found.
    """
    if configured:
        return configured
    named = _option(sys.argv[1:] if arguments is None else arguments)
    if named and _loaded(named) == app:
        return named
    for found in _places(app):
        return found
    raise StickyError(
        f"jobs run in their own process, which must load the app, but no loaded module has {app!r} under a "
        'name: set `sticky_job_app = "module:attribute"` to where the app is'
    )


def _option(arguments: Sequence[str]) -> str | None:
    """Read `-A` as `celery` does: from the options before the command's name, else from the environment."""
    from celery.bin.celery import celery  # takes 9 MB that the job host does not need

    parser = celery.make_parser(click.Context(celery, resilient_parsing=True))
    with suppress(click.UsageError):  # this process was not started as `celery`
        if given := parser.parse_args(list(arguments))[0].get("app"):
            return str(given)
    return os.environ.get("APP") or os.environ.get("CELERY_APP")


def _loaded(name: str) -> Any:
    """Return the app of this name if its module is loaded; loading a module here could have any effect."""

    def look_up(module: str, *_: Any, **__: Any) -> ModuleType:
        if module not in sys.modules:
            raise ModuleNotFoundError(module)
        return sys.modules[module]

    try:
        return find_app(name, imp=look_up)
    except Exception:
        return None


def _places(app: Any) -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("celery", "celery_sticky", "__mp_main__"):
            continue  # they refer to the current app, whichever it is; the last is `__main__` under billiard's name
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is app and (importable := _importable(name, module)):
                yield f"{importable}:{attribute}"


def _importable(name: str, module: Any) -> str | None:
    if name != "__main__":
        return name
    if module.__spec__ is not None:
        return str(module.__spec__.name)  # `python -m shop.main`
    script = Path(getattr(module, "__file__", None) or "")
    return script.stem if script.suffix == ".py" and script.parent.resolve() == Path.cwd() else None


if __name__ == "__main__":
    main(HostOrders(**json.loads(sys.argv[1])))
