"""TLS with a certificate authority of one's own, given as Kombu and Celery take it."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

from celery_sticky.drivers import open_queues, open_store
from celery_sticky.errors import BrokerUnavailable
from celery_sticky.testing.queue_steps import FIRST, HERE, LONG, ack, bodies, open_slot, settle, take
from celery_sticky.testing.servers.base import free_port
from celery_sticky.testing.servers.valkey import ValkeyServer

MB = 1024 * 1024
REDIS, OPENSSL = shutil.which("redis-server"), shutil.which("openssl")
pytestmark = pytest.mark.skipif(
    REDIS is None or OPENSSL is None, reason="needs openssl and a redis-server that speaks TLS on the PATH"
)


def authority(folder: Path) -> Path:
    """Make an authority and a certificate for 127.0.0.1 that it has signed; return the authority's certificate."""
    run = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    ca = [*run, "-subj", "/CN=an authority of our own", "-keyout", "ca.key", "-out", "ca.pem"]
    signed = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-CA", "ca.pem", "-CAkey", "ca.key"]
    for command in (ca, [*run, *signed, "-keyout", "server.key", "-out", "server.pem"]):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "ca.pem"


@pytest.fixture
def trusting(valkey: Callable[..., ValkeyServer], tmp_path: Path) -> tuple[str, Path]:
    """The address of a server that speaks TLS, and the certificate of its authority."""
    ca, port = authority(tmp_path), free_port()
    config = {"tls-port": str(port), "tls-auth-clients": "no", "tls-ca-cert-file": str(ca)}
    config |= {"tls-cert-file": str(tmp_path / "server.pem"), "tls-key-file": str(tmp_path / "server.key")}
    valkey(program=Path(REDIS or ""), config=config)
    return f"rediss://127.0.0.1:{port}/0", ca


def options(ca: Path | None) -> dict[str, Any]:
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED, **({"ssl_ca_certs": str(ca)} if ca else {})}


def test_slot_queues_and_store_work_with_an_authority_of_ones_own(trusting: tuple[str, Path]) -> None:
    url, ca = trusting
    connection = Connection(url, ssl=options(ca))
    with closing(open_queues(connection, prefix="sticky", socket_timeout=5.0)) as queues:
        open_slot(queues, FIRST)
        assert take(queues, FIRST).drained == {HERE}
        with connection.channel() as channel:
            channel.client.lpush("sticky.default.7", bytes(3 * MB), b"small")
        assert queues.idle(LONG) == {HERE}
        (big,) = take(queues, FIRST, limit=1).deliveries
        (small,) = take(queues, FIRST).deliveries
        assert bodies_of(big, small) == [3 * MB, 5]
        assert settle(queues, ack(big), ack(small)).refused == []
        assert bodies(take(queues, FIRST)) == []
    with closing(open_store(connection, "default")) as store:
        assert store.read().view is None


def bodies_of(*deliveries: Any) -> list[int]:
    return [len(delivery.body) for delivery in deliveries]


def test_a_certificate_that_nobody_we_trust_has_signed_is_refused_with_the_reason(trusting: tuple[str, Path]) -> None:
    url, _ = trusting
    queues = open_queues(Connection(url, ssl=options(None)), prefix="sticky", socket_timeout=5.0)
    with closing(queues), pytest.raises(BrokerUnavailable, match="certificate verify failed"):
        open_slot(queues, FIRST)
