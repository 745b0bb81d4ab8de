-- Delete a buried message for ever.
--
-- KEYS  dead
-- ARGV  dead id
-- Reply 1, or 0 if there is no such message

redis.call('HDEL', KEYS[1] .. ':info', ARGV[1])
redis.call('ZREM', KEYS[1] .. ':order', ARGV[1])
return redis.call('HDEL', KEYS[1], ARGV[1])
