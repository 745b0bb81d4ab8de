-- Admit no more jobs, and stop those of a page; or admit jobs again.
--
-- KEYS  root
-- ARGV  channel, closed ('1' or '0'), then the page, see `pages.lua`
-- Reply the page

local channel, closed, first = ARGV[1], ARGV[2] == '1', not ARGV[5]
if first then
    redis.call('DEL', root .. ':closed')
    if closed then
        redis.call('SET', root .. ':closed', 1)
    end
end
if redis.call('EXISTS', root .. ':closed') == 0 then -- perhaps somebody has opened it again between two pages
    return {'0', {}}
end
local stopped = {}
local cursor, left = each_record(3, function(slot, id)
    stop(slot, id)
    stopped[slot] = true
end)
for slot in pairs(stopped) do
    redis.call('PUBLISH', channel, slot)
end
forget_vacant()
return {cursor, left}
