-- View, counters, run id, clock, and times of the last heartbeats, at one instant.
-- KEYS: view, beats, heard
local now = redis.call('TIME')
return {redis.call('HGET', KEYS[1], 'document'), redis.call('HGETALL', KEYS[2]), run_id(), now[1], now[2],
  redis.call('HGETALL', KEYS[3])}
