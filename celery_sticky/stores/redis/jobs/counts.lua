-- The jobs of a page, counted in groups, and the number of dead notes.
--
-- KEYS  root
-- ARGV  the page, see `pages.lua`
-- Reply the page, the number of dead notes, then for each group: slot ('': of keys), state, worker, epoch, failures (at
--       most 2), apart ('1' or '0'), name and key of one of its jobs, and the ids of all

local reply, groups = {redis.call('XLEN', root .. ':dead')}, {}

local function count(slot, id)
    local job = redis.call('HMGET', job_key(id), 'state', 'worker', 'epoch', 'failures', 'apart')
    local place = is_place(slot)
    local failures = string.format('%.0f', math.min(tonumber(job[4] or 0), 2)) -- absent in older records
    local facts = {place and '' or slot, job[1], job[2], place and '0' or job[3], failures, job[5] or '0'}
    local said = table.concat(facts, '\n')
    local group = groups[said]
    if not group then
        local example = redis.call('HMGET', job_key(id), 'name', 'key')
        group = {facts[1], facts[2], facts[3], facts[4], facts[5], facts[6], example[1], example[2], {}}
        groups[said] = group
        reply[#reply + 1] = group
    end
    local ids = group[9]
    ids[#ids + 1] = id
end

local cursor, left = each_record(1, count)
return {cursor, left, reply}
