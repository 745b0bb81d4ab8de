"""The periods of tickers, by the database's clock."""

from __future__ import annotations

from celery_sticky.sql import Database
from celery_sticky.stores import job_rules
from celery_sticky.stores.ticks import Tick


def claim(database: Database, scope: bytes, name: str, every: int) -> Tick:
    """Claim the current period of a ticker; `every` is its length in milliseconds. See `JobStore.claim_tick`."""
    one = [scope, name.encode()]
    with database.transaction() as inside:
        lock = f"SELECT t.begins FROM {{job_tick}} t WHERE t.scope = %s AND t.name = %s{database.dialect.update}"
        rows = inside.rows(lock, one)
        if not rows:
            end = database.dialect.upsert(["scope", "name"], ["scope"])
            inside.run(f"INSERT INTO {{job_tick}} (scope, name, begins) VALUES (%s, %s, -1){end}", one)
            rows = inside.rows(lock, one)
        last = int(rows[0][0])
        now = int(float(inside.rows(f"SELECT {database.dialect.clock}")[0][0]) * 1000)  # behind the lock
        begins, tick = job_rules.ticked(last, now, every)
        if begins != last:
            inside.run("UPDATE {job_tick} SET begins = %s WHERE scope = %s AND name = %s", [begins, *one])
        return tick
