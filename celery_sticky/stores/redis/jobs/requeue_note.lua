-- Put a dead note behind the other notes of the job that has its name and key now.
--
-- KEYS  root
-- ARGV  channel, entry, limit
-- Reply the result for the note

local channel, entry, limit = unpack(ARGV)
local dead = redis.call('XRANGE', dead_key, entry, entry)[1]
if not dead then
    return 'gone'
end
local name, key, slot = dead[2][2], dead[2][4], dead[2][6]
local why, id = refusal(slot, name, key, limit)
if why then
    return why
end
local payload = redis.call('HGET', payloads_key, entry)
drop_dead(entry) -- first: it frees memory, so a full server accepts the note
return leave(channel, slot, id, payload)
