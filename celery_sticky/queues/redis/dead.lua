-- One page of the buried messages of a keyspace without their bodies, oldest first.
--
-- KEYS  dead
-- ARGV  id of the last message seen ('': from the start), page size
-- Reply for each message, flat: id, info

local dead = KEYS[1]
local seen = ARGV[1] ~= '' and redis.call('ZSCORE', dead .. ':order', ARGV[1]) or '0'
local page = redis.call('ZRANGEBYSCORE', dead .. ':order', '(' .. seen, '+inf', 'LIMIT', 0, ARGV[2])
local reply = {}
for _, id in ipairs(page) do
    reply[#reply + 1] = id
    reply[#reply + 1] = redis.call('HGET', dead .. ':info', id)
end
return reply
