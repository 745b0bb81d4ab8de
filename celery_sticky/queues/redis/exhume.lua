-- Put a buried message at the back of its slot queue.
--
-- KEYS  dead, queue
-- ARGV  separator, dead id
-- Reply 1, or 0 if there is no such message

local dead, queue, separator, id = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local value = redis.call('HGET', dead, id)
if not value then
    return 0
end
local priority, body = string.match(value, '^(%d+):(.*)$')
redis.call('LPUSH', priority == '0' and queue or queue .. separator .. priority, body)
redis.call('HDEL', dead, id)
redis.call('HDEL', dead .. ':info', id)
redis.call('ZREM', dead .. ':order', id)
return 1
