-- The keys in a page that have a job of a name, except jobs that are stopping.
--
-- KEYS  root
-- ARGV  name, then the page, see `pages.lua`
-- Reply the page, then key and digest of each

local name, reply = ARGV[1], {}
local cursor, left = each_record(2, function(_, id)
    local job = redis.call('HMGET', job_key(id), 'name', 'key', 'state', 'digest', 'identity')
    if job[1] == name and job[3] ~= 'stopping' then
        reply[#reply + 1] = job[2]
        reply[#reply + 1] = job[4] or job[5]
    end
end)
return {cursor, left, reply}
