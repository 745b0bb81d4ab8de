-- Delete buried messages for ever, a bounded number of them.
--
-- KEYS  dead
-- ARGV  dead ids
-- Reply how many there were

-- include prelude

write_first()

local dead, dropped = KEYS[1], 0
for _, id in ipairs(ARGV) do
    drop_dead(dead, id)
    dropped = dropped + redis.call('ZREM', dead .. ':order', id)
end
return dropped
