-- The records of the keyspace, or of one slot.
--
-- KEYS  root
-- ARGV  slot ('': all)
-- Reply the records

local reply = {}
for _, slot in ipairs(ARGV[1] ~= '' and ARGV or used_slots()) do
    read(slot, reply)
end
return reply
