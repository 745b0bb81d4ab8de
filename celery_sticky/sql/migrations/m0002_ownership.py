"""Version 2: the store of ownership, and that of claims and pins."""

# One row for each keyspace, which every change of the keyspace locks first. Version 0: there is no document.
VIEW = """CREATE TABLE IF NOT EXISTS {view} (
    scope :name: NOT NULL PRIMARY KEY, version bigint NOT NULL, generation bigint NOT NULL, store_id :name: NOT NULL,
    document :bytes: NOT NULL):end:"""

# One row for each member. `announced` is the counter if the last heartbeat was announced, else 0. `calls` is the
# number of the member's last call of the placement store.
HEARTBEAT = """CREATE TABLE IF NOT EXISTS {heartbeat} (
    scope :name: NOT NULL, incarnation :name: NOT NULL, counter bigint NOT NULL, announced bigint NOT NULL,
    heard :double: NOT NULL, calls bigint NOT NULL, PRIMARY KEY (scope, incarnation)):end:"""

REVOKED = """CREATE TABLE IF NOT EXISTS {revoked} (
    prefix :name: NOT NULL, task :key: NOT NULL, expires :double: NOT NULL, PRIMARY KEY (prefix, task),
    UNIQUE (prefix, expires, task)):end:"""

# The last token of a claim or pin of each placed keyspace.
TOKEN = "CREATE TABLE IF NOT EXISTS {token} (scope :name: NOT NULL PRIMARY KEY, token bigint NOT NULL):end:"

ENLISTED = """CREATE TABLE IF NOT EXISTS {enlisted} (
    scope :name: NOT NULL, worker :name: NOT NULL, incarnation :name: NOT NULL, PRIMARY KEY (scope, worker)):end:"""

KEY_CLAIM = """CREATE TABLE IF NOT EXISTS {key_claim} (
    scope :name: NOT NULL, task_key :key: NOT NULL, incarnation :name: NOT NULL, token bigint NOT NULL,
    PRIMARY KEY (scope, task_key)):end:"""

PIN = """CREATE TABLE IF NOT EXISTS {pin} (
    scope :name: NOT NULL, task_key :key: NOT NULL, incarnation :name: NOT NULL, worker :name: NOT NULL,
    token bigint NOT NULL, PRIMARY KEY (scope, task_key)):end:"""

LOST_PIN = """CREATE TABLE IF NOT EXISTS {lost_pin} (
    scope :name: NOT NULL, incarnation :name: NOT NULL, task_key :key: NOT NULL, token bigint NOT NULL,
    expires :double: NOT NULL, PRIMARY KEY (scope, incarnation, task_key)):end:"""

# The changes of pins in the last minute, for those who listen.
MOVED = """CREATE TABLE IF NOT EXISTS {moved} (
    scope :name: NOT NULL, token bigint NOT NULL, task_key :key: NOT NULL, concerned :bytes: NOT NULL,
    PRIMARY KEY (scope, token)):end:"""

STATEMENTS = (VIEW, HEARTBEAT, REVOKED, TOKEN, ENLISTED, KEY_CLAIM, PIN, LOST_PIN, MOVED)
