-- Let a pinned key go, if it is this worker's.
-- ARGV: channel, worker, key
local incarnation = redis.call('HGET', ENLISTED, ARGV[2])
if incarnation and redis.call('HGET', PINS, ARGV[3]) == incarnation .. ' ' .. ARGV[2] then
  redis.call('HDEL', PINS, ARGV[3])
  tell_holder(ARGV[1], ARGV[3])
  return 1
end
return 0
