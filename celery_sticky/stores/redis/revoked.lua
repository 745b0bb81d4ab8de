-- The revoked task ids that have not expired.
-- KEYS: revoked
local time = redis.call('TIME')
return redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', time[1] * 1000000 + time[2]), '+inf')
