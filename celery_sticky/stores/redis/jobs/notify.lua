-- Leave a note for a wanted job.
--
-- KEYS  root
-- ARGV  channel, slot, name, key, payload, limit
-- Reply the result for the note

local channel, slot, name, key, payload, limit = unpack(ARGV)
local id = redis.call('HGET', slot_key(slot), place_of(name, key))
if not id or redis.call('HGET', job_key(id), 'state') == 'stopping' then
    return 'no job'
end
if redis.call('XLEN', notes_key(id)) >= tonumber(limit) then
    return 'full'
end
redis.call('XADD', notes_key(id), next_revision(slot) .. '-0', 'payload', payload) -- first: out of memory, it is refused
revise(slot)
redis.call('PUBLISH', channel, slot)
return 'sent'
