-- Add one to a member's counter, if it has one: a removed member stays removed. Announce it, or return all counters.
-- KEYS: view, beats, heard (incarnation -> time of its last heartbeat in milliseconds)    ARGV: channel, incarnation, announce ('1' or '0')
-- Reply: the counter (0: the member is gone), version, generation, run id, all counters if it was not announced
local run = run_id()
local stored = redis.call('HMGET', KEYS[1], 'version', 'generation')
if not stored[1] or redis.call('HEXISTS', KEYS[2], ARGV[2]) == 0 then
  return {0, stored[1] or '0', stored[2] or '0', run, {}}
end
-- A server that is out of memory refuses writes that grow data until the script has called a command that frees memory.
redis.call('HDEL', KEYS[2], '')
local counter = redis.call('HINCRBY', KEYS[2], ARGV[2], 1)
local time = redis.call('TIME')
redis.call('HSET', KEYS[3], ARGV[2], string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
if ARGV[3] == '1' then
  redis.call('PUBLISH', ARGV[1], 'heard:' .. counter .. ':' .. ARGV[2])
  return {counter, stored[1], stored[2], run, {}}
end
return {counter, stored[1], stored[2], run, redis.call('HGETALL', KEYS[2])}
