-- Set the first message of a list aside on a server that is out of memory and therefore refuses the plain commands.
--
-- KEYS  queue, list, key of the body
-- ARGV  epoch, incarnation, open count, number, field, value of the field
-- Reply the body, or nil: another tenure holds the fence, or the list is empty

-- include prelude

write_first()

local queue, list, key = KEYS[1], KEYS[2], KEYS[3]
local fence = redis.call('HMGET', queue .. ':fence', 'epoch', 'incarnation', 'count', 'opening')
if fence[1] ~= ARGV[1] or fence[2] ~= ARGV[2] or fence[3] ~= ARGV[3] or fence[4] then
    return false
end
redis.call('HLEN', queue .. ':flight')
local body = redis.call('LMOVE', list, key, 'RIGHT', 'LEFT')
if body then
    redis.call('HSET', queue .. ':fence', 'seq', ARGV[4])
    redis.call('HSET', queue .. ':flight', ARGV[5], ARGV[6])
    register_body(queue, key)
end
return body
