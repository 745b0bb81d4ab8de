-- The stored records and notes of the slots whose revision differs from the known one, until there are enough records.
--
-- KEYS  root
-- ARGV  maximum number of notes of a slot, number of records that are enough, the slots, then as many known revisions
-- Reply for each such slot, flat: slot, revision, records, and notes: for each job that has some its id, their number,
--       the oldest of them, and flat the entries with failed deliveries and how many

local CHUNK = 1000 -- Lua cannot unpack many thousand arguments at once
local enough, first = tonumber(ARGV[2]), 3
local slots = (#ARGV - first + 1) / 2
local seen = 0
local reply = {}

-- The notes are shared equally, so a job that takes none of its notes does not block those of others.
local function notes(slot)
    local found = {}
    for _, id in ipairs(redis.call('HVALS', slot_key(slot))) do
        local waiting = redis.call('XLEN', notes_key(id))
        if waiting > 0 then
            found[#found + 1] = {id, waiting}
        end
    end
    local share = math.max(1, math.floor(ARGV[1] / #found))
    for _, one in ipairs(found) do
        one[3] = redis.call('XRANGE', notes_key(one[1]), '-', '+', 'COUNT', share)
        one[4] = redis.call('HGETALL', failed_key(one[1]))
    end
    return found
end

local function say(slot, revision)
    reply[#reply + 1] = slot
    reply[#reply + 1] = revision
    local records = {}
    for _, id in ipairs(redis.call('HVALS', slot_key(slot))) do
        records[#records + 1] = fields(id)
    end
    seen = seen + #records
    reply[#reply + 1] = records
    reply[#reply + 1] = notes(slot)
end

-- Return the revisions of these slots and places of keys; '0' for those without one.
local function revisions(from, upto)
    local found, placed = redis.call('HMGET', root .. ':revisions', unpack(ARGV, from, upto)), nil
    for i = 1, #found do
        if not found[i] and is_place(ARGV[from + i - 1]) then
            placed = placed or redis.call('HMGET', root .. ':places', unpack(ARGV, from, upto))
            found[i] = placed[i]
        end
        found[i] = found[i] or '0'
    end
    return found
end

for from = first, first + slots - 1, CHUNK do
    local upto = math.min(from + CHUNK - 1, first + slots - 1)
    for i, revision in ipairs(revisions(from, upto)) do
        local at = from + i - 1
        if seen >= enough then
            return reply
        end
        if revision ~= ARGV[at + slots] then
            say(ARGV[at], revision)
        end
    end
end
return reply
