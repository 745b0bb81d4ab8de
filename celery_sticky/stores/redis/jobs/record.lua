-- In front of every script: where things stand, and what becomes of a record.
--
-- <root>:<slot>         hash    place -> id: the records of the slot
-- <root>:job:<id>       hash    a record; and the identity of its dispatch, and the outcome_ttl (milliseconds) of it
-- <root>:outcome:<id>   stream  one entry: error, identity. Many can wait for it, and it expires.
-- <root>:notes:<id>     stream  payload: what waits for a job. An entry is named by the revision of the slot that it made.
-- <root>:queued         set     ids of the fresh records
-- <root>:revisions      hash    number of a slot -> revision, of every slot that was ever used
-- <root>:places         hash    place of a key -> revision, of those that have records; '' -> the highest there ever was
-- <root>:fences         hash    slot -> epoch
-- <root>:ticks          hash    ticker -> last number
-- <root>:closed                 is there while the keyspace is closed

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

-- Names and keys may hold any character: the length says where the name ends.
local function place_of(name, key)
    return #name .. ':' .. name .. key
end

local function is_place(slot)
    return string.sub(slot, 1, 1) == '='
end

-- Whether it is the place of a key, and has no records: then there is nothing to be fenced.
local function vacant(slot)
    return is_place(slot) and redis.call('EXISTS', slot_key(slot)) == 0
end

-- Return the fence of a slot if it is another one, else false.
local function fenced(slot, epoch)
    if vacant(slot) then
        return false
    end
    local fence = redis.call('HGET', root .. ':fences', slot) or '0'
    return fence ~= epoch and fence
end

-- Return the revision of a slot; '0' where there is none.
local function revision_of(slot)
    return redis.call('HGET', root .. (is_place(slot) and ':places' or ':revisions'), slot) or '0'
end

-- Return the next revision of a slot, one for all of a script's changes: the clock's, so that none comes twice where the
-- server has lost its last writes.
local coming = {}
local function next_revision(slot)
    if not coming[slot] then
        -- One counter for all places of keys: one that was forgotten may come again.
        local revisions, field = root .. (is_place(slot) and ':places' or ':revisions'), is_place(slot) and '' or slot
        local time, last = redis.call('TIME'), tonumber(redis.call('HGET', revisions, field)) or 0
        coming[slot] = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))
    end
    return coming[slot]
end

-- Give a slot that revision, and return it.
local revised = {}
local function revise(slot)
    if not revised[slot] then
        revised[slot] = next_revision(slot)
        local revisions = root .. (is_place(slot) and ':places' or ':revisions')
        -- A server that is out of memory lets a script grow nothing until the script has removed something.
        redis.call('HDEL', revisions, slot)
        redis.call('HSET', revisions, slot, revised[slot])
        if is_place(slot) then
            redis.call('HSET', revisions, '', revised[slot])
        end
    end
    return revised[slot]
end

-- Write down how a start went, for all who wait and all who will ask.
local function tell(id, identity, error, ttl)
    redis.call('SREM', root .. ':queued', id)
    redis.call('XADD', outcome_key(id), '*', 'error', error, 'identity', identity)
    redis.call('PEXPIRE', outcome_key(id), ttl)
end

-- Let a record go, with its notes: with this outcome if it is fresh, kept for `ttl` (nil: as its dispatch wants).
-- Then `forget_vacant`, unless another one comes in its stead.
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

-- Forget the places of keys in which this script has left no record.
local function forget_vacant()
    for slot in pairs(gone) do
        if vacant(slot) then
            redis.call('HDEL', root .. ':places', slot)
            redis.call('HDEL', root .. ':fences', slot)
        end
    end
end

-- Want a job no more. Then `forget_vacant`.
local function stop(slot, id)
    local state = redis.call('HGET', job_key(id), 'state')
    if state == 'queued' then
        remove(slot, id, 'stopped before it started')
    elseif state ~= 'stopping' then
        redis.call('HSET', job_key(id), 'version', revise(slot), 'state', 'stopping')
    end
end

-- Return every slot and every place of a key in which there may be records.
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

