-- Store run results, drop notes that were handled, and count failed deliveries of others.
--
-- KEYS  root
-- ARGV  slot, epoch, known revision, outcome_ttl (milliseconds), maximum number of dead notes, and of their bytes, number
--       of handled notes, number of failed deliveries, for each handled note its entry and the id of its job, for each
--       failed delivery entry, id, number of the delivery, whether the note is dead ('1' or '0'), and error, then for
--       each report: id, run result, error, failures, strikes, apart, pause (seconds)
-- Reply the fence that refuses (nil: none), and the revision now ('0': it was not the known one before)

local slot, epoch, known, ttl, most, most_bytes = unpack(ARGV, 1, 6)
local first_note = 9
local first_failed = first_note + 2 * ARGV[7]
local first_report = first_failed + 5 * ARGV[8]
local fence, before = fenced(slot, epoch), revision_of(slot)
if fence then
    return {fence, '0'}
end

local function settle(id, result, error, failures, strikes, apart, pause)
    local job = redis.call('HMGET', job_key(id), 'slot', 'state', 'fresh', 'identity', 'durable', 'attempt')
    local fresh, state, durable = job[3] == '1', job[2], job[5] == '1'
    if result == 'unclean' and error ~= '' and (not job[1] or job[1] == slot) then
        redis.call('DEL', unclean_key(id)) -- first: frees memory, so a full server accepts the write
        redis.call('SET', unclean_key(id), error, 'PX', ttl)
    end
    if job[1] ~= slot then
        return
    end
    if result == 'withdrawn' then
        if fresh and tonumber(job[6]) > 0 then
            redis.call('HINCRBY', job_key(id), 'attempt', -1)
            redis.call('HSET', job_key(id), 'version', revise(slot), 'state', unwanted(state) and state or 'queued',
                'epoch', 0, 'worker', '')
        end
    elseif result == 'started' then
        if fresh then
            tell(id, job[4], '', ttl)
        end
        redis.call('HSET', job_key(id), 'version', revise(slot), 'state', unwanted(state) and state or 'running',
            'fresh', 0)
    elseif result == 'settled' then
        redis.call('HSET', job_key(id), 'version', revise(slot), 'error', '', 'failures', 0, 'apart', 0)
    elseif result == 'paused' then
        if state == 'pausing' then
            redis.call('HSET', job_key(id), 'version', revise(slot), 'state', 'paused', 'epoch', 0, 'worker', '')
            redis.call('SREM', root .. ':ending', id)
        end
    elseif (result == 'failed' or result == 'given up') and state ~= 'stopping' and (durable or not fresh) then
        if fresh then
            tell(id, job[4], error, ttl)
        end
        local time = redis.call('TIME')
        local after = result == 'failed' and 'failing' or 'failed'
        redis.call('HSET', job_key(id), 'version', revise(slot), 'state', unwanted(state) and state or after,
            'fresh', 0, 'error', error, 'failures', failures, 'strikes', strikes, 'apart', apart,
            'retry_at', string.format('%.3f', time[1] + time[2] / 1000000 + pause))
    else
        remove(slot, id, error, ttl)
    end
end

local function fail(id, entry, delivery, dead, error)
    local note = redis.call('XRANGE', notes_key(id), entry, entry)[1]
    if not note then
        return
    end
    if dead == '1' then
        drop_note(slot, id, entry)
        bury(id, note[2][2], delivery, error, tonumber(most), tonumber(most_bytes))
    elseif tonumber(delivery) > tonumber(redis.call('HGET', failed_key(id), entry) or 0) then
        revise(slot) -- first: it frees memory, so a full server accepts the write
        redis.call('HSET', failed_key(id), entry, delivery)
    end
end

local function is_here(id)
    return redis.call('HGET', job_key(id), 'slot') == slot
end

for i = first_note, first_failed - 1, 2 do
    if is_here(ARGV[i + 1]) then
        drop_note(slot, ARGV[i + 1], ARGV[i])
    end
end
for i = first_failed, first_report - 1, 5 do
    if is_here(ARGV[i + 1]) then
        fail(ARGV[i + 1], ARGV[i], unpack(ARGV, i + 2, i + 4))
    end
end
for i = first_report, #ARGV, 7 do
    settle(unpack(ARGV, i, i + 6))
end
forget_vacant()
return {false, before == known and revision_of(slot) or '0'}
