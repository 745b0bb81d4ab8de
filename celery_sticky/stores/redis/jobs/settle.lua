-- Store run results, and drop notes that were delivered.
--
-- KEYS  root
-- ARGV  slot, epoch, known revision, outcome_ttl (milliseconds), number of notes, for each note its entry and the id of
--       its job, then for each report: id, run result, error
-- Reply the fence that refuses (nil: none), and the revision now ('0': it was not the known one before)

local slot, epoch, known, ttl, first_note = ARGV[1], ARGV[2], ARGV[3], ARGV[4], 6
local first_report = first_note + 2 * ARGV[5]
local fence, before = fenced(slot, epoch), revision_of(slot)
if fence then
    return {fence, '0'}
end

local function settle(id, disposition, error)
    local job = redis.call('HMGET', job_key(id), 'slot', 'state', 'fresh', 'identity')
    local fresh, stopping = job[3] == '1', job[2] == 'stopping'
    if job[1] ~= slot then
        return
    end
    if disposition == 'started' then
        if fresh then
            tell(id, job[4], '', ttl)
        end
        redis.call('HSET', job_key(id), 'version', revise(slot), 'state', stopping and 'stopping' or 'running',
            'fresh', 0, 'error', '')
    elseif disposition == 'ended' or fresh or stopping then
        remove(slot, id, error, ttl)
    else
        redis.call('HSET', job_key(id), 'version', revise(slot), 'state', 'failing', 'error', error)
    end
end

for i = first_note, first_report - 1, 2 do
    local entry, id = ARGV[i], ARGV[i + 1]
    if redis.call('HGET', job_key(id), 'slot') == slot and redis.call('XDEL', notes_key(id), entry) == 1 then
        revise(slot)
        if redis.call('XLEN', notes_key(id)) == 0 then
            redis.call('DEL', notes_key(id))
        end
    end
end
for i = first_report, #ARGV, 3 do
    settle(ARGV[i], ARGV[i + 1], ARGV[i + 2])
end
forget_vacant()
return {false, before == known and revision_of(slot) or '0'}
