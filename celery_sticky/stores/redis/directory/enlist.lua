-- Note that a worker has a direct queue.
-- ARGV: worker, incarnation
put(ENLISTED, ARGV[1], ARGV[2])
return 1
