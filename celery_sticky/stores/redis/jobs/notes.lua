-- Prepended, behind `record.lua`, to the scripts about notes.
--
-- <root>:dead           stream  name, key, slot, job, deliveries, error, size: the dead notes, named by when they died
-- <root>:dead_payloads  hash    entry -> payload of a dead note; '' -> the size of all payloads in bytes

local dead_key, payloads_key = root .. ':dead', root .. ':dead_payloads'

-- Return why no note can be left for a job (false: it can), and its id.
local function refusal(slot, name, key, limit)
    local id = redis.call('HGET', slot_key(slot), place_of(name, key))
    if not id or redis.call('HGET', job_key(id), 'state') == 'stopping' then
        return 'no job'
    end
    return redis.call('XLEN', notes_key(id)) >= tonumber(limit) and 'full', id
end

-- Leave a note for a job.
local function leave(channel, slot, id, payload)
    -- First: a server that is out of memory refuses it.
    redis.call('XADD', notes_key(id), next_revision(slot) .. '-0', 'payload', payload)
    revise(slot)
    redis.call('PUBLISH', channel, slot)
    return 'sent'
end

-- Drop a note that waits for a job.
local function drop_note(slot, id, entry)
    if redis.call('XDEL', notes_key(id), entry) == 0 then
        return
    end
    redis.call('HDEL', failed_key(id), entry)
    if redis.call('XLEN', notes_key(id)) == 0 then
        redis.call('DEL', notes_key(id))
    end
    revise(slot)
end

-- Drop a dead note; return whether there was one.
local function drop_dead(entry)
    if redis.call('XDEL', dead_key, entry) == 0 then
        return false
    end
    local size = redis.call('HSTRLEN', payloads_key, entry)
    redis.call('HDEL', payloads_key, entry)
    redis.call('HINCRBY', payloads_key, '', -size)
    if redis.call('XLEN', dead_key) == 0 then
        redis.call('DEL', dead_key, payloads_key)
    end
    return true
end

-- Add a dead note of a job, and drop the oldest ones beyond the limits. Drop the waiting note before: it frees memory.
local function bury(id, payload, deliveries, error, most, most_bytes)
    local job = redis.call('HMGET', job_key(id), 'name', 'key', 'slot')
    local entry = redis.call('XADD', dead_key, '*', 'name', job[1], 'key', job[2], 'slot', job[3], 'job', id,
        'deliveries', deliveries, 'error', error, 'size', #payload)
    redis.call('HSET', payloads_key, entry, payload)
    redis.call('HINCRBY', payloads_key, '', #payload)
    while redis.call('XLEN', dead_key) > most or tonumber(redis.call('HGET', payloads_key, '') or 0) > most_bytes do
        drop_dead(redis.call('XRANGE', dead_key, '-', '+', 'COUNT', 1)[1][1])
    end
end

