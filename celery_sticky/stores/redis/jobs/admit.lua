-- Store a wanted job, unless a check refuses it.
--
-- KEYS  root
-- ARGV  channel, max_queued, outcome_ttl (milliseconds), identity of the dispatch, durable, slot, id, name, key, payload
-- Reply the admission, and the error of the dispatch's outcome (nil: not known)

local channel, max_queued, outcome_ttl, identity, durable, slot, id, name, key, payload = unpack(ARGV)

local function known_dispatch()
    local job = redis.call('HMGET', job_key(id), 'identity', 'fresh')
    local told = redis.call('XRANGE', outcome_key(id), '-', '+')[1]
    if job[1] then
        return job[1], job[2] == '0' and (told and told[2][2] or '')
    end
    if told then
        return told[2][4], told[2][2]
    end
end

if redis.call('EXISTS', root .. ':closed') == 1 then
    return {'closed', false}
end
local known, error = known_dispatch()
if known then
    return known == identity and {'repeated', error} or {'conflict', false}
end
local place = place_of(name, key)
local old = redis.call('HGET', slot_key(slot), place)
local replaced = old and redis.call('HMGET', job_key(old), 'state', 'epoch', 'worker')
if old and replaced[1] ~= 'stopping' then
    return {'exists', false}
end
if redis.call('SCARD', root .. ':queued') >= tonumber(max_queued) then
    return {'full', false}
end

redis.call('SADD', root .. ':queued', id) -- first: a server that is out of memory refuses it
if old then
    remove(slot, old, 'stopped before it started')
    redis.call('SADD', root .. ':ending', id)
end
local time = redis.call('TIME')
redis.call('HSET', slot_key(slot), place, id)
redis.call('HSET', job_key(id), 'name', name, 'key', key, 'slot', slot, 'id', id, 'payload', payload,
    'state', 'queued', 'fresh', 1, 'attempt', 0, 'epoch', old and replaced[2] or 0,
    'worker', old and replaced[3] or '', 'error', '',
    'created', string.format('%d.%06d', time[1], time[2]), 'version', revise(slot),
    'identity', identity, 'outcome_ttl', outcome_ttl, 'durable', durable, 'failures', 0, 'strikes', 0, 'apart', 0)
redis.call('PUBLISH', channel, slot)
return {'admitted', false}
