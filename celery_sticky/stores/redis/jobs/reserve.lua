-- Reserve the start of those jobs that are still wanted.
--
-- KEYS  root
-- ARGV  slot, epoch, known revision, worker, then ids
-- Reply the fence that refuses (nil: none), the revision now ('0': it was not the known one before), then id and
--       attempt of each reserved start

local slot, epoch, known, worker = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local fence, before = fenced(slot, epoch), revision_of(slot)
local reply = {fence, '0'}
for i = 5, fence and 0 or #ARGV do
    local id = ARGV[i]
    local job = redis.call('HMGET', job_key(id), 'slot', 'state')
    if job[1] == slot and not unwanted(job[2]) then
        redis.call('HSET', job_key(id), 'version', revise(slot), 'state', 'starting', 'epoch', epoch, 'worker', worker)
        redis.call('SREM', root .. ':ending', id) -- its owner starts it, so nothing is left of a job that it replaced
        reply[#reply + 1] = id
        reply[#reply + 1] = redis.call('HINCRBY', job_key(id), 'attempt', 1)
    end
end
if before == known then
    reply[2] = revision_of(slot)
end
return reply
