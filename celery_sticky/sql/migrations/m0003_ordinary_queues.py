"""Version 3: ordinary queues of a Celery broker, and its broadcasts. Their messages are in `message` too."""

# A queue that was declared, by the hash of its name. `lasts` is the time in seconds for which it outlives its last
# consumer, and `expires` is when it is deleted unless somebody consumes from it; both are NULL if it is kept.
QUEUE = """CREATE TABLE IF NOT EXISTS {queue} (
    queue bigint NOT NULL PRIMARY KEY, name :bytes: NOT NULL, lasts :double:, expires :double:):end:"""

# A connection that consumes. Its claims are given back when `counter` stands still.
CONSUMER = """CREATE TABLE IF NOT EXISTS {consumer} (
    consumer :name: NOT NULL PRIMARY KEY, counter bigint NOT NULL, about :bytes: NOT NULL):end:"""

# A message that a consumer holds. The row of the message is unchanged.
CLAIM = """CREATE TABLE IF NOT EXISTS {claim} (
    queue bigint NOT NULL, priority smallint NOT NULL, id bigint NOT NULL, consumer :name: NOT NULL,
    PRIMARY KEY (queue, priority, id)):end:"""

BINDING = """CREATE TABLE IF NOT EXISTS {binding} (
    exchange :name: NOT NULL, routing_key :name: NOT NULL, pattern :bytes: NOT NULL, name :name: NOT NULL,
    queue bigint NOT NULL, PRIMARY KEY (exchange, routing_key, name)):end:"""

# A message for all who listen to an exchange now: one row, however many they are.
BROADCAST = """CREATE TABLE IF NOT EXISTS {broadcast} (
    id :serial:, exchange :name: NOT NULL, routing_key :bytes: NOT NULL, at :double: NOT NULL, body :bytes: NOT NULL,
    :serial_key:):end:"""

STATEMENTS = (QUEUE, CONSUMER, CLAIM, BINDING, BROADCAST)
