"""The ledger of runs: which were claimed, by which delivery, and when those that have finished did so."""

# A run that has finished has a time in `done`, and no holder.
LEDGER = """CREATE TABLE IF NOT EXISTS {ledger} (
    keyspace :name: NOT NULL, run :name: NOT NULL, holder :bytes: NOT NULL, done :double:,
    PRIMARY KEY (keyspace, run), UNIQUE (keyspace, done, run)):end:"""

STATEMENTS = (LEDGER,)
