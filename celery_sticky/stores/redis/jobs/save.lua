-- Store checkpoints in the records of their jobs.
--
-- KEYS  root
-- ARGV  slot, epoch, then for each checkpoint: id, attempt, number, checkpoint
-- Reply the fence that refuses (nil: none), then the ids of the jobs that have a record

local slot, epoch = ARGV[1], ARGV[2]
local fence = fenced(slot, epoch)
local reply = {fence}
for i = 3, fence and 0 or #ARGV, 4 do
    local id, attempt, number = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
    local job = redis.call('HMGET', job_key(id), 'slot', 'saved_attempt', 'saved_number')
    if job[1] == slot then
        local last, last_number = tonumber(job[2]) or 0, tonumber(job[3]) or 0
        if attempt > last or (attempt == last and number > last_number) then
            redis.call('HDEL', job_key(id), 'saved') -- first: frees memory, so a full server accepts the write
            redis.call('HSET', job_key(id), 'saved', ARGV[i + 3], 'saved_attempt', attempt, 'saved_number', number)
        end
        reply[#reply + 1] = id
    end
end
return reply
