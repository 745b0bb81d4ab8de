"""The program of a job host: `python -m celery_sticky.execution.job_host`, started by a worker for its jobs.

It loads the app by name, as `celery -A` does, because a process that is forked beside threads may hang.
"""

from __future__ import annotations

import json
import logging
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
from celery_sticky.jobs.host.run import error_text
from celery_sticky.jobs.keeper.process import CONNECTION, LEASE
from celery_sticky.jobs.wire import Unready, encode
from celery_sticky.membership.lease import Lease

logger = logging.getLogger("celery_sticky.jobs")


@dataclass(frozen=True, slots=True)
class HostOrders:
    """What the program is told by the worker that starts it."""

    app: str
    """As `celery -A` takes it."""
    hostname: str
    """The worker's node name."""
    keyspaces: Mapping[str, int]
    """Name -> slots, in the order of the worker's lease."""
    parent: int
    """The worker's process id."""


def host_command(worker: Any, app: str, keyspaces: Mapping[str, int]) -> list[str]:
    """Return the command line that starts a job host of this process for a worker's keyspaces."""
    orders = HostOrders(app, worker.hostname, dict(keyspaces), os.getpid())
    return [sys.executable, "-m", "celery_sticky.execution.job_host", json.dumps(asdict(orders))]


def main(orders: HostOrders) -> None:
    """Run the host, and return when the worker wants it to end. Exits with status 1 if the app cannot be loaded."""
    leave_signals_to_worker()
    for descriptor in (CONNECTION, LEASE):
        os.set_inheritable(descriptor, False)  # a program that a job starts is not to keep them
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
        threads=settings.job_threads,
        logger_name=settings.job_logger,
    )


def _load(orders: HostOrders) -> Any:
    app = find_app(orders.app)
    app.set_current()
    set_default_app(app)  # in handlers too, which run in other threads
    app.loader.import_default_modules()
    app.finalize()
    _set_up_log(app, orders.hostname)
    signals.worker_process_init.send(sender=None)  # for what an app sets up in each process that runs its code
    platforms.set_process_title("celeryd", info=f"{orders.hostname} job host")
    return app


def _set_up_log(app: Any, hostname: str) -> None:
    # The worker leaves its options here for the children of its pool, which set up their log in this way too.
    app.log.setup(
        int(os.environ.get("CELERY_LOG_LEVEL") or logging.WARNING),
        os.environ.get("CELERY_LOG_FILE") or None,
        bool(os.environ.get("CELERY_LOG_REDIRECT")),
        os.environ.get("CELERY_LOG_REDIRECT_LEVEL") or "WARNING",
        hostname=hostname,
    )


# -- in the worker: what to call the app --------------------------------------------------------


def app_name(app: Any, configured: str | None = None, arguments: Sequence[str] | None = None) -> str:
    """Return a name under which another process can load this app.

    `configured`, or what this process was given as `celery -A`, or where the app is found among the loaded modules.

    Raises:
        StickyError: it is found nowhere.
    """
    if configured:
        return configured
    named = _option(sys.argv[1:] if arguments is None else arguments)
    if named and _loaded(named) == app:
        return named
    for found in _places(app):
        return found
    raise StickyError(
        f"jobs run in a process of their own, which has to load the app, and no loaded module has {app!r} under a "
        'name: set `sticky_job_app = "module:attribute"` to where it is to be found'
    )


def _option(arguments: Sequence[str]) -> str | None:
    """Read `-A` as `celery` does: from its own options, before the name of the command, else from the environment."""
    from celery.bin.celery import celery  # 9 MB that the job host has no need of

    parser = celery.make_parser(click.Context(celery, resilient_parsing=True))
    with suppress(click.UsageError):  # this process was not started as `celery`
        if given := parser.parse_args(list(arguments))[0].get("app"):
            return str(given)
    return os.environ.get("APP") or os.environ.get("CELERY_APP")


def _loaded(name: str) -> Any:
    """Return the app of this name, if its module is loaded: what is not ours to load may do anything."""

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
            continue  # they hold whatever app is the current one; the last is `__main__` as billiard calls it
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
