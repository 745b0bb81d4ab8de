-- View, counters, run id and clock at one instant.
-- KEYS: view, beats
local now = redis.call('TIME')
return {redis.call('HGET', KEYS[1], 'document'), redis.call('HGETALL', KEYS[2]), run_id(), now[1], now[2]}
