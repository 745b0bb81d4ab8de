-- Note that a worker has a direct queue.
-- ARGV: worker, incarnation
return redis.call('HSET', ENLISTED, ARGV[1], ARGV[2])
