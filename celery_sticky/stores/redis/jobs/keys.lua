-- The keys that have a job of a name, except jobs that are stopping.
--
-- KEYS  root
-- ARGV  name
-- Reply the keys

local reply, ahead = {}, place_of(ARGV[1], '')
for _, slot in ipairs(used_slots()) do
    local places = redis.call('HGETALL', slot_key(slot))
    for i = 1, #places, 2 do
        local ours = string.sub(places[i], 1, #ahead) == ahead
        if ours and redis.call('HGET', job_key(places[i + 1]), 'state') ~= 'stopping' then
            reply[#reply + 1] = string.sub(places[i], #ahead + 1)
        end
    end
end
return reply
