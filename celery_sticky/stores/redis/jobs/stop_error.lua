-- The error that the stop of a job raised.
--
-- KEYS  root
-- ARGV  id
-- Reply the error; nil: none is kept

return redis.call('GET', unclean_key(ARGV[1]))
