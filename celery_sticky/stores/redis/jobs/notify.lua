-- Leave a note for a wanted job.
--
-- KEYS  root
-- ARGV  channel, slot, name, key, payload, limit
-- Reply the result for the note

local channel, slot, name, key, payload, limit = unpack(ARGV)
local why, id = refusal(slot, name, key, limit)
return why or leave(channel, slot, id, payload)
