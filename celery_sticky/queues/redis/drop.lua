-- Delete buried messages for good, a bounded number of them.
--
-- KEYS  dead
-- ARGV  dead ids
-- Reply the number of messages deleted

-- include prelude

write_first()

local dead, dropped = KEYS[1], 0
for _, id in ipairs(ARGV) do
    drop_dead(dead, id)
    dropped = dropped + redis.call('ZREM', dead .. ':order', id)
end
return dropped
