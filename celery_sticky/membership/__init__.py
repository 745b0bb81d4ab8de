"""Loop 2: a worker's membership: heartbeats, lease, ownership of slots."""
