-- The places of keys that have records.
--
-- KEYS  root
-- ARGV  known revision
-- Reply nil if the revision is the known one; else the revision, and then place and revision of each

local revision = redis.call('HGET', root .. ':places', '') or '0'
if revision == ARGV[1] then
    return false
end
local reply = {revision}
local places = redis.call('HGETALL', root .. ':places')
for i = 1, #places, 2 do
    if places[i] ~= '' then
        reply[#reply + 1] = places[i]
        reply[#reply + 1] = places[i + 1]
    end
end
return reply
