-- Prepended to every script: the layout of the keys, and the changes of a record.
--
-- <root>:<slot>         hash    place -> id: the records of the slot
-- <root>:job:<id>       hash    a record, with the identity and the outcome_ttl (milliseconds) of its dispatch
-- <root>:outcome:<id>   stream  one entry: error, identity. Many can wait for it, and it expires.
-- <root>:notes:<id>     stream  payload: the notes that wait for a job. An entry is named by the slot revision it made.
-- <root>:queued         set     ids of the fresh records
-- <root>:revisions      hash    number of a slot -> revision, of every slot that was ever used
-- <root>:places         hash    place of a key -> revision, of those that have records; '' -> the highest one ever
-- <root>:fences         hash    slot -> epoch
-- <root>:ticks          hash    ticker -> last number
-- <root>:closed                 exists while the keyspace is closed

local root = KEYS[1]

local function slot_key(slot)
    return root .. ':' .. slot
end

local function notes_key(id)
    return root .. ':notes:' .. id
end

local function job_key(id)
    return root .. ':job:' .. id
end

local function outcome_key(id)
    return root .. ':outcome:' .. id
end

-- Names and keys may hold any character, so the length marks the end of the name.
local function place_of(name, key)
    return #name .. ':' .. name .. key
end

local function is_place(slot)
    return string.sub(slot, 1, 1) == '='
end

-- Whether it is the place of a key without records: then there is nothing to fence.
local function vacant(slot)
    return is_place(slot) and redis.call('EXISTS', slot_key(slot)) == 0
end

-- Return the fence of a slot if it differs from the epoch, else false.
local function fenced(slot, epoch)
    if vacant(slot) then
        return false
    end
    local fence = redis.call('HGET', root .. ':fences', slot) or '0'
    return fence ~= epoch and fence
end

-- Return the revision of a slot; '0' if it has none.
local function revision_of(slot)
    return redis.call('HGET', root .. (is_place(slot) and ':places' or ':revisions'), slot) or '0'
end

-- Return the next revision of a slot, one for all of a script's changes. It is taken from the clock, so that it stays
-- unique when the server loses its last writes.
local coming = {}
local function next_revision(slot)
    if not coming[slot] then
        -- All places of keys share one counter, because a forgotten place may come back.
        local revisions, field = root .. (is_place(slot) and ':places' or ':revisions'), is_place(slot) and '' or slot
        local time, last = redis.call('TIME'), tonumber(redis.call('HGET', revisions, field)) or 0
        coming[slot] = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))
    end
    return coming[slot]
end

-- Give a slot its next revision, and return it.
local revised = {}
local function revise(slot)
    if not revised[slot] then
        revised[slot] = next_revision(slot)
        local revisions = root .. (is_place(slot) and ':places' or ':revisions')
        -- A server that is out of memory refuses writes that grow data until the script has removed something.
        redis.call('HDEL', revisions, slot)
        redis.call('HSET', revisions, slot, revised[slot])
        if is_place(slot) then
            redis.call('HSET', revisions, '', revised[slot])
        end
    end
    return revised[slot]
end

-- Store the outcome of a start, for those who wait and those who ask later.
local function tell(id, identity, error, ttl)
    redis.call('SREM', root .. ':queued', id)
    redis.call('XADD', outcome_key(id), '*', 'error', error, 'identity', identity)
    redis.call('PEXPIRE', outcome_key(id), ttl)
end

-- Remove a record with its notes. A fresh one gets this outcome, kept for `ttl` (nil: as its dispatch asked).
-- Call `forget_vacant` next, unless another record replaces it.
local gone = {}
local function remove(slot, id, error, ttl)
    local job = redis.call('HMGET', job_key(id), 'name', 'key', 'fresh', 'identity', 'outcome_ttl')
    redis.call('DEL', job_key(id), notes_key(id))
    redis.call('HDEL', slot_key(slot), place_of(job[1], job[2]))
    if job[3] == '1' then
        tell(id, job[4], error, ttl or job[5])
    end
    gone[slot] = true
    revise(slot)
end

-- Forget the places of keys that this script left without records.
local function forget_vacant()
    for slot in pairs(gone) do
        if vacant(slot) then
            redis.call('HDEL', root .. ':places', slot)
            redis.call('HDEL', root .. ':fences', slot)
        end
    end
end

-- Mark a job as no longer wanted, or remove it if it is queued. Call `forget_vacant` next.
local function stop(slot, id)
    local state = redis.call('HGET', job_key(id), 'state')
    if state == 'queued' then
        remove(slot, id, 'stopped before it started')
    elseif state ~= 'stopping' then
        redis.call('HSET', job_key(id), 'version', revise(slot), 'state', 'stopping')
    end
end

-- Return every slot and every place of a key that may have records.
local function used_slots()
    local slots = redis.call('HKEYS', root .. ':revisions')
    for _, place in ipairs(redis.call('HKEYS', root .. ':places')) do
        slots[#slots + 1] = place ~= '' and place or nil
    end
    return slots
end

-- Add the records of a slot to a reply, each as a list of its fields in the order of `JobRecord`.
local function read(slot, reply)
    for _, id in ipairs(redis.call('HVALS', slot_key(slot))) do
        reply[#reply + 1] = redis.call('HMGET', job_key(id), 'name', 'key', 'slot', 'id', 'payload', 'state', 'fresh',
            'attempt', 'epoch', 'worker', 'error', 'created', 'version')
    end
    return reply
end

