"""Loop 2: a worker's place among the others: heartbeats, lease, ownership of slots."""
