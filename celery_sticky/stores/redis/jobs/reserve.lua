-- Reserve the start of those jobs that are still wanted.
--
-- KEYS  root
-- ARGV  slot, epoch, worker, then ids
-- Reply the fence that refuses (nil: none), then id and attempt of each reserved start

local slot, epoch, worker = ARGV[1], ARGV[2], ARGV[3]
local fence = fenced(slot, epoch)
local reply = {fence}
for i = 4, fence and 0 or #ARGV do
    local id = ARGV[i]
    local job = redis.call('HMGET', job_key(id), 'slot', 'state')
    if job[1] == slot and job[2] ~= 'stopping' then
        redis.call('HSET', job_key(id), 'version', revise(slot), 'state', 'starting', 'epoch', epoch, 'worker', worker)
        reply[#reply + 1] = id
        reply[#reply + 1] = redis.call('HINCRBY', job_key(id), 'attempt', 1)
    end
end
return reply
