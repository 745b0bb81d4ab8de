-- Stop every job of the keyspace and admit no more; or admit jobs again.
--
-- KEYS  root
-- ARGV  channel, closed ('1' or '0')

local channel, closed = ARGV[1], ARGV[2] == '1'
redis.call('DEL', root .. ':closed')
if not closed then
    return
end
redis.call('SET', root .. ':closed', 1)
for _, slot in ipairs(used_slots()) do
    local ids = redis.call('HVALS', slot_key(slot))
    for _, id in ipairs(ids) do
        stop(slot, id)
    end
    if #ids > 0 then
        redis.call('PUBLISH', channel, slot)
    end
end
forget_vacant()
