"""The nemesis: injects each fault, and waits until the cluster has recovered."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import redis

from celery_sticky.cli.verify.cluster import Cluster, now, session_of
from celery_sticky.cli.verify.load import SLOW
from celery_sticky.cli.verify.observer import Observer
from celery_sticky.cli.verify.plan import ORDERS, Step
from celery_sticky.cli.verify.site import HANG, Mode
from celery_sticky.cli.verify.timeline import EVERYBODY, Done, Frozen
from celery_sticky.keys import queue_name
from celery_sticky.testing import processes
from celery_sticky.testing.waiting import wait_until
from celery_sticky.testing.worker import WorkerProcess

GRACE = 45.0
"""Seconds a worker may take to stop gracefully before it is killed."""
CASCADE_PAUSE = 0.2
"""Seconds between two deaths."""
APPENDONLY = "appendonlydir"
"""The server's default folder for its append-only log."""
LAG = 500_000_000
"""Nanoseconds by which a replica that has caught up may be behind when its primary dies."""
SETTLING = 20.0
"""Seconds within which all slots should be at their targets. The fault counts as over then at the latest."""


class Nemesis:
    """Injects the faults of one run, one after the other."""

    def __init__(self, cluster: Cluster, observer: Observer, order: Callable[[Mapping[str, Any]], None]) -> None:
        self._cluster, self._observer, self._order = cluster, observer, order
        self._draw = random.Random(f"faults-{cluster.run_options.seed}")
        self.frozen: list[Frozen] = []
        self._copy: Mapping[bytes, bytes] = {}

    def do(self, step: Step) -> Done:
        """Inject one fault, and wait until the slots have settled or `SETTLING` has passed."""
        done = Done(step, since=now(), before=self._observer.view())
        act: Callable[[Step, Done], None] = getattr(self, "_" + step.fault.replace("-", "_"))
        act(step, done)
        if step.fault not in (*ORDERS, "clock", "child-kill"):
            self._settle(done)
        done.until = now()
        return done

    def keep_copy(self) -> None:
        """Take the copy of the store that a rollback restores."""
        server = self._cluster.store
        if server is None:
            return
        with suppress(redis.RedisError), server.client(decode_responses=False) as client:
            client.save()
            shutil.copy(server.placement_store / "dump.rdb", server.placement_store / "copy.rdb")
            self._copy = {name: client.dump(name) for name in client.scan_iter("*")}

    def _settle(self, done: Done) -> None:
        until = time.monotonic() + SETTLING
        while time.monotonic() < until:
            view = self._observer.settled(self._cluster.workers)
            if view is not None:
                done.after = done.after or view
                return
            if self._cluster.run_options.mode is not Mode.STICKY:
                return
            time.sleep(0.05)  # poll
        done.note = f"not settled within {SETTLING:.0f} s"

    # -- workers that die --------------------------------------------------------------------------

    def _kill(self, step: Step, done: Done) -> None:
        (name,), (successor,) = step.workers, step.names
        worker = self._cluster.retire(name)
        done.hit.add(name)
        pids = session_of(worker)
        worker.kill()
        done.since = worker.deaths[worker.pid]
        worker.deaths.update(processes.wait_gone(pids, timeout=self._cluster.site.eviction_timeout))
        self._settle(done)
        self._succeed(worker, successor)

    def _cascade(self, step: Step, done: Done) -> None:
        gone: list[WorkerProcess] = []
        for name in step.workers:
            if gone:
                time.sleep(CASCADE_PAUSE)  # the fault itself
            gone.append(self._cluster.retire(name))
            done.hit.add(name)
            gone[-1].kill_all()
        done.since = gone[0].deaths[gone[0].pid]
        self._settle(done)
        for worker, successor in zip(gone, step.names, strict=True):
            self._succeed(worker, successor)

    def _child_kill(self, step: Step, done: Done) -> None:
        (name,) = step.workers
        children = self._cluster.workers[name].children
        if not children:
            done.note = "the worker had no child at that moment"
            return
        done.hit.add(name)
        victim = self._draw.choice(children)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        self._cluster.workers[name].deaths.update(processes.wait_gone([victim], timeout=5.0))
        time.sleep(0.3)  # its runs may start again only now, and must count to this fault

    # -- workers that start and stop gracefully ----------------------------------------------------

    def _term(self, step: Step, done: Done) -> None:
        (worker,) = self._end(step.workers, done)
        self._succeed(worker, step.names[0])

    def _join(self, step: Step, done: Done) -> None:
        self._cluster.start(step.names[0])

    def _leave(self, step: Step, done: Done) -> None:
        self._end(step.workers, done)

    def _rolling(self, step: Step, done: Done) -> None:
        for name, successor in zip(step.workers, step.names, strict=True):
            (worker,) = self._end([name], done)
            self._succeed(worker, successor)
            self._ready(successor)

    def _surge(self, step: Step, done: Done) -> None:
        for name, successor in zip(step.workers, step.names, strict=True):
            self._cluster.successor(name, successor)
            self._cluster.start(successor)
        for successor in step.names:
            self._ready(successor)
        self._end(step.workers, done)

    def _end(self, names: Sequence[str], done: Done) -> list[WorkerProcess]:
        """Ask all these workers to stop at once, wait until they have, and return them."""
        workers = [self._cluster.retire(name) for name in names]
        pids = [session_of(worker) for worker in workers]
        for worker in workers:
            with suppress(ProcessLookupError):  # a poison message may have killed it already
                worker.kill(signal.SIGTERM)
        for worker, own in zip(workers, pids, strict=True):
            self._await_end(worker, own, done)
        return workers

    def _await_end(self, worker: WorkerProcess, pids: Sequence[int], done: Done) -> None:
        if not worker.wait_ended(GRACE):
            done.hit.add(worker.name)
            done.note = f"{worker.name} was killed: it was still running {GRACE:.0f} s after SIGTERM"
            worker.kill_all()
        worker.deaths.update(processes.wait_gone(pids, timeout=2.0))

    def _succeed(self, gone: WorkerProcess, name: str) -> None:
        self._cluster.successor(gone.name, name)
        self._cluster.start(name, again=gone if gone.name == name else None)

    def _ready(self, name: str) -> None:
        worker = self._cluster.workers[name]
        until = time.monotonic() + SETTLING
        while worker.alive and time.monotonic() < until and "ready." not in worker.log:
            time.sleep(0.05)  # poll

    # -- workers that are paused or cut off --------------------------------------------------------

    def _stop(self, step: Step, done: Done) -> None:
        (name,) = step.workers
        worker = self._cluster.workers[name]
        done.hit.add(name)
        pids, since = frozenset(session_of(worker)), now()
        worker.freeze()
        time.sleep(step.detail["seconds"])  # the fault itself
        until = now()
        worker.thaw()
        self.frozen.append(Frozen(name, pids, since, until))

    def _partition(self, step: Step, done: Done) -> None:
        (name,) = step.workers
        done.hit.add(name)
        roles = zip(("broker", "store"), self._cluster.proxies[name], strict=True)
        stock = self._cluster.run_options.mode is not Mode.STICKY  # it has a broker only
        cut = [proxy for role, proxy in roles if stock or step.detail["from"] in (role, "both")]
        for proxy in cut:
            getattr(proxy, step.detail["how"])()
        time.sleep(step.detail["seconds"])  # the fault itself
        for proxy in cut:
            proxy.heal()

    def _loop_hang(self, step: Step, done: Done) -> None:
        (name,) = step.workers
        done.hit.add(name)
        self._cluster.workers[name].kill(HANG)
        time.sleep(self._cluster.site.hang)  # the fault itself

    def _clock(self, step: Step, done: Done) -> None:
        (name,) = step.workers
        self._cluster.set_clock(name, step.detail["seconds"])
        time.sleep(3.0)  # the worker sees the change within 1 s
        self._cluster.set_clock(name, 0)

    # -- servers -----------------------------------------------------------------------------------

    def _broker_restart(self, step: Step, done: Done) -> None:
        server = self._cluster.broker
        assert server is not None
        done.hit.add(EVERYBODY)
        if step.detail["how"] == "kill":
            server.kill()
        else:
            server.stop()
        time.sleep(0.5)  # the fault itself: no server answers
        server.start()

    def _broker_freeze(self, step: Step, done: Done) -> None:
        server = self._cluster.broker
        assert server is not None
        done.hit.add(EVERYBODY)
        server.freeze()
        time.sleep(step.detail["seconds"])  # the fault itself
        server.thaw()

    def _broker_rollback(self, step: Step, done: Done) -> None:
        server = self._cluster.broker
        assert server is not None
        done.hit.add(EVERYBODY)
        log, copy = server.placement_store / APPENDONLY, server.placement_store / "copy-of-log"
        shutil.copytree(log, copy)
        time.sleep(step.detail["seconds"])  # the fault itself: the broker will lose what it accepts now
        server.kill()
        done.forgot_until = now()
        shutil.rmtree(log)
        copy.rename(log)
        server.start()

    def _failover(self, step: Step, done: Done) -> None:
        pair = self._cluster.pair
        assert pair is not None
        done.hit.add(EVERYBODY)
        with suppress(AssertionError):  # under load the replica may always lack the last few bytes
            wait_until(pair.caught_up, 2.0)
            done.since = now() - LAG
        pair.kill_primary()
        done.forgot_until = now()
        pair.restore()

    def _broker_full(self, step: Step, done: Done) -> None:
        server = self._cluster.broker
        assert server is not None
        done.hit.add(EVERYBODY)
        with server.client() as client:
            client.config_set("maxmemory", 1)
            time.sleep(step.detail["seconds"])  # the fault itself: sends are refused, workers continue
            client.config_set("maxmemory", 0)

    def _wrong_type(self, step: Step, done: Done) -> None:
        server, site = self._cluster.broker, self._cluster.site
        assert server is not None
        done.hit.add(EVERYBODY)
        slots = self._draw.sample(range(site.slots), site.slots)
        with server.client() as client:
            queues = (site.prefix + queue_name(site.keyspace, slot) for slot in slots)
            key = next((f"{queue}:flight" for queue in queues if client.set(f"{queue}:flight", "oops", nx=True)), None)
            if key is None:
                done.note = "every slot had messages in flight at that moment"
                return
            time.sleep(step.detail["seconds"])  # the fault itself
            client.delete(key)

    def _store_rollback(self, step: Step, done: Done) -> None:
        server = self._cluster.store
        assert server is not None
        done.hit.add(EVERYBODY)
        if step.detail["how"] == "restart":
            server.kill()
            shutil.copy(server.placement_store / "copy.rdb", server.placement_store / "dump.rdb")
            server.start()
        else:
            with server.client(decode_responses=False) as client, client.pipeline() as pipe:
                pipe.multi()
                for name, value in self._copy.items():
                    pipe.restore(name, 0, value, replace=True)
                pipe.execute()
        time.sleep(self._cluster.site.eviction_timeout)  # workers may notice the rollback only by then

    def _backend_away(self, step: Step, done: Done) -> None:
        server = self._cluster.results
        assert server is not None
        server.kill()
        time.sleep(step.detail["seconds"])  # the fault itself: tasks end, but their results cannot be stored
        server.start()

    # -- special orders to the senders -------------------------------------------------------------

    def _oom(self, step: Step, done: Done) -> None:
        self._order({"send": "oom", **step.detail})

    def _burst(self, step: Step, done: Done) -> None:
        self._order({"send": "burst", **step.detail})

    def _big(self, step: Step, done: Done) -> None:
        self._order({"send": "big", **step.detail})

    def _slow(self, step: Step, done: Done) -> None:
        self._order({"send": "slow", "seconds": SLOW, **step.detail})

    def _malformed(self, step: Step, done: Done) -> None:
        self._order({"send": "malformed", **step.detail})
