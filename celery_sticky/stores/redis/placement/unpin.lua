-- Remove a pin, if it is this worker's.
-- ARGV: channel, worker, key
local channel, worker, key = ARGV[1], ARGV[2], ARGV[3]
local incarnation = redis.call('HGET', ENLISTED, worker)
if not incarnation then
  return 0
end
redis.call('SREM', LOST .. incarnation, key)
if pinner(key) ~= incarnation then
  return 0
end
redis.call('HDEL', PINS, key)
local _, held_by = holder(key)
tell(channel, key, held_by)
return 1
