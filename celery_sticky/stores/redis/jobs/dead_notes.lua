-- Dead notes, oldest first.
--
-- KEYS  root
-- ARGV  first entry, last entry, number of notes, whether with payloads ('1' or '0')
-- Reply for each its entry, fields, and payload (nil: not asked for)

local reply = redis.call('XRANGE', dead_key, ARGV[1], ARGV[2], 'COUNT', ARGV[3])
for _, note in ipairs(reply) do
    note[3] = ARGV[4] == '1' and redis.call('HGET', payloads_key, note[1])
end
return reply
