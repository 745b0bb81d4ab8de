-- Drop the oldest buried messages, a bounded number at a time.
--
-- KEYS  dead
-- ARGV  how many may stay (0: any number), the time before which none stays, most messages to drop
-- Reply the number dropped

-- include prelude

write_first()

local dead, limit, before = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local order = dead .. ':order'
local surplus = limit > 0 and redis.call('ZCARD', order) - limit or 0
local dropped = 0

local function too_old(id)
    local read, info = pcall(cjson.decode, redis.call('HGET', dead .. ':info', id) or '')
    local at = read and type(info) == 'table' and tonumber(info.at)
    return at and at < before
end

for _, id in ipairs(redis.call('ZRANGE', order, 0, ARGV[3] - 1)) do
    if dropped >= surplus and not too_old(id) then
        break
    end
    drop_dead(dead, id)
    redis.call('ZREM', order, id)
    dropped = dropped + 1
end
return dropped
