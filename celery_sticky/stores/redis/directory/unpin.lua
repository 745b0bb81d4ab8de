-- Let a pinned key go, if it is this worker's.
-- ARGV: worker, key
local incarnation = redis.call('HGET', ENLISTED, ARGV[1])
if incarnation and redis.call('HGET', PINS, ARGV[2]) == incarnation .. ' ' .. ARGV[1] then
  return redis.call('HDEL', PINS, ARGV[2])
end
return 0
