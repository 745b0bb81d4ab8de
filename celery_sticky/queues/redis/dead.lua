-- One page of the buried messages of a keyspace, oldest first.
--
-- KEYS  dead
-- ARGV  position of the last one seen (0: from the start), page size
-- Reply for each message, flat: position, id, info, '<priority>:<body>'

local dead = KEYS[1]
local page = redis.call('ZRANGEBYSCORE', dead .. ':order', '(' .. ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
local reply = {}
for i = 1, #page, 2 do
    local id = page[i]
    reply[#reply + 1] = page[i + 1]
    reply[#reply + 1] = id
    reply[#reply + 1] = redis.call('HGET', dead .. ':info', id)
    reply[#reply + 1] = redis.call('HGET', dead, id)
end
return reply
