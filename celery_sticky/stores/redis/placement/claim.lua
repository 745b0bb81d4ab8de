-- Claim keys for a member, if the document is the known one and the pins are as the member believes.
-- ARGV: incarnation, call, lower bound of its counter, known version, known generation, then for each key: key,
--       pin ('': none), run ('1' or '0')
-- Reply: 'gone'; or 'changed' and the document (nil: none); or 'done', and for each key the answer and its value
local incarnation = ARGV[1]
if may_act(incarnation) and tonumber(redis.call('HGET', BEATS, incarnation)) < tonumber(ARGV[3]) then
  redis.call('DEL', VIEW) -- an older copy of the store is back: its claims cannot be trusted
end
if not may_act(incarnation) or not in_turn(incarnation, ARGV[2]) then
  return {'gone'}
end
local changed, document = compared(ARGV[4], ARGV[5])
if changed then
  return {'changed', document}
end

local token = last_token()
local reply = {'done'}
local function say(said, value)
  reply[#reply + 1] = said
  reply[#reply + 1] = value
end

for i = 6, #ARGV, 3 do
  local key, pin = ARGV[i], (pinned(ARGV[i]))
  local _, held_by = holder(key)
  if pin ~= ARGV[i + 1] then
    say('pinned', pin)
  elseif ARGV[i + 2] == '0' then
    say('right', '')
  elseif held_by and held_by ~= incarnation and lives(held_by) then
    say('held', held_by)
  else
    token = token + 1
    redis.call('HSET', CLAIMS, key, written(token) .. ' ' .. incarnation)
    say('granted', written(token))
  end
end
redis.call('HSET', CALLS, '', written(token))
return reply
