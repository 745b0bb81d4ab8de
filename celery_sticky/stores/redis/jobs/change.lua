-- Update, pause or resume a job, and signal its slot.
--
-- KEYS  root
-- ARGV  channel, slot, name, key, 'update', restart ('1' or '0'), then perhaps payload and its digest; or
--       channel, slot, name, key, 'pause' or 'resume'
-- Reply its id; nil: there is no such job, or it is stopping

local channel, slot, name, key, verb, restart, payload, digest = unpack(ARGV)
local id = redis.call('HGET', slot_key(slot), place_of(name, key))
local job = id and redis.call('HMGET', job_key(id), 'state', 'epoch')
if not id or job[1] == 'stopping' then
    return false
end
local state = job[1]

local function change(...)
    redis.call('HSET', job_key(id), 'version', revise(slot), ...)
    redis.call('PUBLISH', channel, slot)
end

local function begin_again()
    redis.call('HINCRBY', job_key(id), 'generation', 1)
end

if verb == 'update' then
    if payload then
        change('payload', payload, 'digest', digest)
    end
    if restart == '1' then
        if state == 'failed' then
            change('state', 'queued', 'error', '', 'failures', 0, 'epoch', 0, 'worker', '')
        else
            change()
        end
        begin_again()
    end
elseif verb == 'pause' and state ~= 'paused' and state ~= 'pausing' then
    change('state', state == 'queued' and job[2] == '0' and 'paused' or 'pausing')
elseif verb == 'resume' and state == 'pausing' then
    change('state', 'queued')
    begin_again()
elseif verb == 'resume' and state == 'paused' then
    change('state', 'queued')
end
return id
