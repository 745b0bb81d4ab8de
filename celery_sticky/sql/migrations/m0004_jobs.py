"""The job store.

Every change of a slot's jobs locks rows in this order: `closed` of the keyspace, if it admits jobs or closes; slots;
`places` of the keyspace, if a slot is the place of a key, or a note dies.
"""

# Two rows for each keyspace. `closed` is 1 while no jobs are admitted; `places` is the highest revision that any place
# of a key ever had.
JOB_SPACE = """CREATE TABLE IF NOT EXISTS {job_space} (
    scope :name: NOT NULL, part :name: NOT NULL, value bigint NOT NULL, PRIMARY KEY (scope, part)):end:"""

# One row for each slot that was ever used, and for each place of a key that has jobs: the epoch that it is fenced for,
# its revision, and when it was last signalled, by the database's clock.
JOB_SLOT = """CREATE TABLE IF NOT EXISTS {job_slot} (
    scope :name: NOT NULL, slot :slot: NOT NULL, epoch bigint NOT NULL, revision bigint NOT NULL,
    signalled :double: NOT NULL, PRIMARY KEY (scope, slot), UNIQUE (scope, signalled, slot)):end:"""

# `waits` says whom a job keeps waiting: see `stores.sql.jobs.rows`. `identity` is the digest of its dispatch, `digest`
# that of its payload now.
JOB = """CREATE TABLE IF NOT EXISTS {job} (
    scope :name: NOT NULL, id :key: NOT NULL, slot :slot: NOT NULL, name :name: NOT NULL, job_key :key: NOT NULL,
    state :name: NOT NULL, waits smallint NOT NULL, attempt bigint NOT NULL, epoch bigint NOT NULL,
    worker :name: NOT NULL, error :bytes: NOT NULL, created :double: NOT NULL, version bigint NOT NULL,
    generation bigint NOT NULL, durable smallint NOT NULL, failures bigint NOT NULL, strikes bigint NOT NULL,
    apart smallint NOT NULL, retry_at :double: NOT NULL, identity :name: NOT NULL, outcome_ttl :double: NOT NULL,
    digest :name: NOT NULL, payload :bytes: NOT NULL, saved :bytes:, saved_attempt bigint NOT NULL,
    saved_number bigint NOT NULL,
    PRIMARY KEY (scope, id), UNIQUE (scope, slot, name, job_key), UNIQUE (scope, waits, id)):end:"""

# The notes that wait for a job. `revision` is the one that the note gave to the slot.
JOB_NOTE = """CREATE TABLE IF NOT EXISTS {job_note} (
    scope :name: NOT NULL, job :key: NOT NULL, revision bigint NOT NULL, failed bigint NOT NULL,
    payload :bytes: NOT NULL, PRIMARY KEY (scope, job, revision)):end:"""

JOB_DEAD = """CREATE TABLE IF NOT EXISTS {job_dead} (
    id :serial:, scope :name: NOT NULL, slot :slot: NOT NULL, name :name: NOT NULL, job_key :key: NOT NULL,
    job :key: NOT NULL, deliveries bigint NOT NULL, error :bytes: NOT NULL, died :double: NOT NULL,
    size bigint NOT NULL, payload :bytes: NOT NULL, UNIQUE (scope, id), :serial_key:):end:"""

# What is kept for a while for those who wait or ask again: how the start of a dispatched job went (kind 0), and the
# error that the stop of a job raised (kind 1).
JOB_ANSWER = """CREATE TABLE IF NOT EXISTS {job_answer} (
    scope :name: NOT NULL, kind smallint NOT NULL, id :key: NOT NULL, identity :name: NOT NULL, error :bytes: NOT NULL,
    expires :double: NOT NULL, PRIMARY KEY (scope, kind, id), UNIQUE (scope, expires, kind, id)):end:"""

# The start of the last claimed period of each ticker, in milliseconds since the Unix epoch.
JOB_TICK = """CREATE TABLE IF NOT EXISTS {job_tick} (
    scope :name: NOT NULL, name :key: NOT NULL, begins bigint NOT NULL, PRIMARY KEY (scope, name)):end:"""

STATEMENTS = (JOB_SPACE, JOB_SLOT, JOB, JOB_NOTE, JOB_DEAD, JOB_ANSWER, JOB_TICK)
