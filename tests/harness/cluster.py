"""pytest-celery's nodes on local processes instead of Docker containers."""

from __future__ import annotations

import os
import signal

import celery
from pytest_celery import (
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestBackend,
    CeleryTestBroker,
    CeleryTestWorker,
    CeleryWorkerCluster,
)

from celery_sticky.testing.worker import WorkerProcess
from harness.standing import answers


class ServerContainer:
    """A broker or result backend that runs already. It cannot be killed, because other tests may use it."""

    status = "running"

    def __init__(self, url: str, name: str = "redis") -> None:
        self.url, self.name, self.id = url, name, name

    @property
    def celeryconfig(self) -> dict[str, str]:
        """The address, which is the same for workers and tests."""
        return {"url": self.url, "host_url": self.url}

    def ready(self) -> bool:
        """Return whether the server answers."""
        return answers(self.url)

    def logs(self) -> str:
        """Return nothing: there is no log of a server that the tests did not start."""
        return ""

    def reload(self) -> None:
        """Do nothing: there is no state to refresh."""

    def teardown(self) -> None:
        """Do nothing: the server keeps running."""


class WorkerContainer:
    """A worker process."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker, self.name = worker, worker.name
        self.id = os.uname().nodename

    @property
    def status(self) -> str:
        """`running` or `exited`."""
        return "running" if self.worker.alive else "exited"

    @property
    def celeryconfig(self) -> dict[str, str]:
        """A worker adds nothing to the app's settings."""
        return {}

    def ready(self) -> bool:
        """Wait until the worker says that it is ready."""
        self.worker.wait_ready()
        return True

    def logs(self) -> str:
        """Return the worker's log since its last start."""
        return self.worker.log

    def kill(self, signal: str | int = signal.SIGKILL) -> None:
        """Send a signal, by name or number, to the main process."""
        self.worker.kill(_number(signal))

    def reload(self) -> None:
        """Do nothing: the state is read on each access."""

    def restart(self, timeout: float = 60.0) -> None:
        """End the process if it runs, start it again and wait until it is ready."""
        if self.worker.alive:
            self.worker.stop(timeout)
        self.worker.start().wait_ready(timeout)

    def teardown(self) -> None:
        """Leave no process behind."""
        self.worker.teardown()

    def version(self) -> str:
        """Return the version of Celery."""
        return str(celery.__version__)

    def log_level(self) -> str:
        """Return the worker's log level."""
        return self.worker.log_level

    def worker_name(self) -> str:
        """Return the node name before the `@`."""
        return self.worker.name

    def worker_queue(self) -> str:
        """Return the queue of unkeyed tasks."""
        return "celery"


class LocalWorker(CeleryTestWorker):
    """A worker node that uses this machine's full host name."""

    def hostname(self) -> str:
        """Return the worker's node name in Celery."""
        return f"{self.worker_name}@{self.container.id}"


def broker_cluster(url: str) -> CeleryBrokerCluster:
    """Return a cluster of the one broker at `url`."""
    return CeleryBrokerCluster(CeleryTestBroker(ServerContainer(url, "broker")))


def backend_cluster(url: str) -> CeleryBackendCluster:
    """Return a cluster of the one result backend at `url`."""
    return CeleryBackendCluster(CeleryTestBackend(ServerContainer(url, "backend")))


def worker_cluster(app: celery.Celery, *workers: WorkerProcess) -> CeleryWorkerCluster:
    """Return a cluster of these workers, which are ready."""
    nodes = [LocalWorker(WorkerContainer(worker), app) for worker in workers]
    return CeleryWorkerCluster(*nodes)


def _number(name: str | int) -> int:
    return int(signal.Signals[name]) if isinstance(name, str) else int(name)
