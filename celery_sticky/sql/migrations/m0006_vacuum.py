"""When PostgreSQL vacuums the tables whose rows come and go with each task.

By default it waits until a fifth of a table is dead, and a look at a queue from its front meets all of that. Here a
fixed number of dead rows counts, so a backlog does not put the vacuum off. Statistics that are renewed early let the
planner know of a backlog. Rows that are updated in place (fences, heartbeats) leave room for that in their page.
"""

from collections.abc import Mapping, Sequence

DEAD = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = {}"
BIG = "toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 5000"
STATISTICS = "autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000"
UPDATED = f"{DEAD.format(500)}, fillfactor = 50"

SETTINGS = {
    "message": f"{DEAD.format(5000)}, {BIG}, {STATISTICS}",
    "claim": f"{DEAD.format(5000)}, {STATISTICS}",
    "deferred": f"{DEAD.format(5000)}, {BIG}",
    "flight": DEAD.format(1000),
    "ledger": f"{DEAD.format(5000)}, {STATISTICS}",
    "broadcast": DEAD.format(1000),
    "fence": UPDATED,
    "heartbeat": UPDATED,
    "consumer": UPDATED,
}

STATEMENTS: Mapping[str, Sequence[str]] = {
    "postgresql": [f"ALTER TABLE {{{table}}} SET ({settings})" for table, settings in SETTINGS.items()]
}
