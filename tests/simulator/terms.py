"""The configuration of every simulated worker; times in seconds."""

from __future__ import annotations


class _Keyspace(str):
    """A name with the same hash in every process, so that sets keep their order and a seed produces the same world."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 7


KEYSPACE = _Keyspace("ks")
HASH = "h"
TTL, MARGIN, SETTLE, BROKER_GRACE = 10.0, 2.0, 3.0, 8.0
LOOP_TIMEOUT = 4.0
TIMEOUT = 2.0
"""How long a client waits for a server, in seconds."""
MAX_WAITING, MAX_WAITING_BYTES, MAX_ATTEMPTS, DEAD_LIMIT = 4096, 64 * 1024 * 1024, 5, 2
LEDGER_RETENTION = 86400.0
START_TIMEOUT, STOP_TIMEOUT, JOB_POLL, OUTCOME_TTL, MAX_STARTS, MAX_DELIVERIES = 4.0, 2.0, 5.0, 600.0, 3, 3
"""Of jobs."""
JOB_THREADS, WATCHDOG, HOSTS, QUARANTINE = 1, 6.0, 2, 2
EPOCH = 1e6
"""The wall clock at the start of the world."""
