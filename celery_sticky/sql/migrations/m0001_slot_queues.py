"""Version 1: slot queues.

Keys, ids and names are bytes: collations of MySQL make `A` and `a ` one key, and PostgreSQL's text refuses a NUL.
"""

META = "CREATE TABLE IF NOT EXISTS {meta} (name :name: NOT NULL PRIMARY KEY, value :bytes: NOT NULL):end:"

# `queue` is the hash of a queue's name: a sender looks nothing up and creates nothing. A row is never updated.
MESSAGE = """CREATE TABLE IF NOT EXISTS {message} (
    id :serial:, queue bigint NOT NULL, priority smallint NOT NULL, body :bytes: NOT NULL, :message_key:):end:"""

# The tenure that a slot is fenced for, and the number of its opening, which grows with each one.
FENCE = """CREATE TABLE IF NOT EXISTS {fence} (
    queue bigint NOT NULL PRIMARY KEY, epoch bigint NOT NULL, incarnation :name: NOT NULL, opens bigint NOT NULL,
    opening bigint NOT NULL):end:"""

# One row for each trip that brought messages: which ones, and under which openings and tags (see `queues.sql.flights`).
FLIGHT = """CREATE TABLE IF NOT EXISTS {flight} (
    incarnation :name: NOT NULL, trip :name: NOT NULL, data :bytes: NOT NULL, PRIMARY KEY (incarnation, trip)):end:"""

SUSPECT = """CREATE TABLE IF NOT EXISTS {suspect} (
    queue bigint NOT NULL, id bigint NOT NULL, starts integer NOT NULL, PRIMARY KEY (queue, id)):end:"""

DEFERRED = """CREATE TABLE IF NOT EXISTS {deferred} (
    queue bigint NOT NULL, due :double: NOT NULL, tag bigint NOT NULL, priority smallint NOT NULL,
    body :bytes: NOT NULL, PRIMARY KEY (queue, due, tag)):end:"""

DEAD = """CREATE TABLE IF NOT EXISTS {dead} (
    id :serial:, keyspace :name: NOT NULL, name :name: NOT NULL, queue bigint NOT NULL, priority smallint NOT NULL,
    at :double:, info :bytes: NOT NULL, body :bytes: NOT NULL, UNIQUE (keyspace, name), :serial_key:):end:"""

STATEMENTS = (META, MESSAGE, FENCE, FLIGHT, SUSPECT, DEFERRED, DEAD)
