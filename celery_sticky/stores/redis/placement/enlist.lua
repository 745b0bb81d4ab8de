-- Record that a worker has a worker queue.
-- ARGV: worker, incarnation
put(ENLISTED, ARGV[1], ARGV[2])
return 1
