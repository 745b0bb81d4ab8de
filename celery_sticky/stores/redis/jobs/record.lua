-- Prepended to every script: the layout of the keys, and the changes of a record.
--
-- <root>:<slot>         hash    place -> id: the records of the slot
-- <root>:job:<id>       hash    a record, with the identity and the outcome_ttl (milliseconds) of its dispatch; with
--                               attempt and number of the last checkpoint; digest: of a payload that was updated
-- <root>:outcome:<id>   stream  one entry: error, identity. Many can wait for it, and it expires.
-- <root>:unclean:<id>   string  the error that the stop of a job raised. It expires.
-- <root>:notes:<id>     stream  payload: the notes that wait for a job. An entry is named by the slot revision it made.
-- <root>:failed:<id>    hash    entry of a note that waits for a job -> its failed deliveries, if there are any
-- <root>:queued         set     ids of the fresh records
-- <root>:ending         set     ids of the records that are stopping, or that replace a job of which a run may be left
-- <root>:revisions      hash    number of a slot -> revision, of every slot that was ever used
-- <root>:places         hash    place of a key -> revision, of those that have records; '' -> the highest one ever
-- <root>:fences         hash    slot -> epoch
-- <root>:ticks          hash    ticker -> start of the last claimed period (milliseconds, by TIME)
-- <root>:closed                 exists while the keyspace is closed

local root = KEYS[1]

local function slot_key(slot)
    return root .. ':' .. slot
end

local function notes_key(id)
    return root .. ':notes:' .. id
end

local function failed_key(id)
    return root .. ':failed:' .. id
end

local function job_key(id)
    return root .. ':job:' .. id
end

local function unclean_key(id)
    return root .. ':unclean:' .. id
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
    redis.call('DEL', job_key(id), notes_key(id), failed_key(id))
    redis.call('HDEL', slot_key(slot), place_of(job[1], job[2]))
    redis.call('SREM', root .. ':ending', id)
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

-- Whether a job in this state must not run.
local function unwanted(state)
    return state == 'stopping' or state == 'pausing' or state == 'paused' or state == 'failed'
end

-- Mark a job as no longer wanted, or remove it if nothing of it can run. Call `forget_vacant` next.
local function stop(slot, id)
    local job = redis.call('HMGET', job_key(id), 'state', 'epoch')
    local state, vacant = job[1], job[2] == '0'
    if state == 'failed' or (vacant and (state == 'queued' or state == 'paused')) then
        remove(slot, id, 'stopped before it started')
        return
    end
    if state ~= 'stopping' then
        redis.call('HSET', job_key(id), 'version', revise(slot), 'state', 'stopping')
    end
    redis.call('SREM', root .. ':ending', id) -- first: a full server accepts the write then
    redis.call('SADD', root .. ':ending', id)
end

-- Return the fields of a record, in the order of `JobRecord`.
local function fields(id)
    return redis.call('HMGET', job_key(id), 'name', 'key', 'slot', 'id', 'payload', 'state', 'fresh', 'attempt',
        'epoch', 'worker', 'error', 'created', 'version', 'generation', 'saved', 'durable', 'failures', 'strikes',
        'apart', 'retry_at')
end

