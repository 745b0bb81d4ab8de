-- Forget a worker, if this is still its last incarnation.
-- ARGV: worker, incarnation
if redis.call('HGET', ENLISTED, ARGV[1]) == ARGV[2] then
  return redis.call('HDEL', ENLISTED, ARGV[1])
end
return 0
