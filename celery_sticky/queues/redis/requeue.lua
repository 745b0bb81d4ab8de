-- Requeue a buried message at the back of its slot queue.
--
-- KEYS  dead, queue
-- ARGV  separator, dead id
-- Reply 1, or 0 if there is no such message

-- include prelude

write_first()

local dead, queue, separator, id = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local value = redis.call('HGET', dead, id)
if not value then
    return 0
end
local body = body_of(value)
redis.call('LPUSH', list_of(queue, separator, string.match(value, '^%d+')), body)
if referred(body) then
    register_body(queue, referred(body))
end
redis.call('HDEL', dead, id)
redis.call('HDEL', dead .. ':info', id)
redis.call('ZREM', dead .. ':order', id)
return 1
