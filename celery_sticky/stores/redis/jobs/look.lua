-- What is written down for the slots whose revision is not the known one.
--
-- KEYS  root
-- ARGV  most notes of a slot, the slots, then as many known revisions
-- Reply for each such slot, flat: slot, revision, records, notes

local CHUNK = 1000 -- Lua cannot unpack many thousand arguments at once
local slots = (#ARGV - 1) / 2
local reply = {}

local function say(slot, revision)
    reply[#reply + 1] = slot
    reply[#reply + 1] = revision
    reply[#reply + 1] = read(slot, {})
    reply[#reply + 1] = redis.call('XRANGE', notes_key(slot), '-', '+', 'COUNT', ARGV[1])
end

for from = 2, slots + 1, CHUNK do
    local upto = math.min(from + CHUNK - 1, slots + 1)
    local revisions = redis.call('HMGET', root .. ':revisions', unpack(ARGV, from, upto))
    for i, revision in ipairs(revisions) do
        local at = from + i - 1
        if (revision or '0') ~= ARGV[at + slots] then
            say(ARGV[at], revision or '0')
        end
    end
end
return reply
