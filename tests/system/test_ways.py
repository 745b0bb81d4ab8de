"""Workers that reach their Redis over TLS or through a Sentinel: for broker and store alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.keyed_fleet import KeyedFleet
from harness.ways import Run, needs_tls, sentinel, tls_server

from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until


@needs_tls
def test_workers_run_keyed_tasks_over_tls(crew: Callable[..., KeyedFleet], run: Run, tmp_path: Path) -> None:
    url, cert = tls_server(run, tmp_path)
    fleet = crew(broker=f"{url}&ssl_ca_certs={cert}")
    fleet.workers_up("a", "b")
    fleet.publish_many(200, 20, 0.005)
    fleet.workers["a"].stop()
    fleet.wait_finished()
    judgement = fleet.judge()
    assert judgement.ok and not judgement.duplicates, judgement.describe()


def test_workers_follow_a_sentinel_to_the_new_master(
    crew: Callable[..., KeyedFleet], run: Run, valkey: Callable[..., ValkeyServer], tmp_path: Path
) -> None:
    master = valkey()
    replica = valkey(config={"replicaof": f"127.0.0.1 {master.port}"})
    address, options = sentinel(run, master, tmp_path)
    fleet = crew(
        broker=address,
        broker_transport_options={**options, "socket_timeout": 2, "socket_connect_timeout": 2},
    )
    fleet.workers_up("a", "b")
    fleet.publish_many(100, 20)
    fleet.wait_finished()
    with replica.client() as client, master.client() as former:
        wait_until(
            lambda: client.info("replication")["slave_repl_offset"] >= former.info("replication")["master_repl_offset"]
        )
    master.kill()
    with replica.client() as client:
        wait_until(lambda: client.info("replication")["role"] == "master", 30, "the replica is promoted")
    fleet.wait_members("a", "b", timeout=60)
    fleet.publish_many(100, 20)
    fleet.wait_finished()
    judgement = fleet.judge()
    assert judgement.ok, judgement.describe()
