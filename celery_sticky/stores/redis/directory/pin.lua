-- Pin a key for a worker.
-- ARGV: channel, worker, key, take ('1' or '0')
-- Reply: {'gone'}, {'done'}, or {'held', the worker that has it}
local worker, key = ARGV[2], ARGV[3]
local incarnation = redis.call('HGET', ENLISTED, worker)
if not incarnation or not may_act(incarnation) then
  return {'gone'}
end
local by, other = pinned(key)
if by == incarnation then
  return {'done'}
end
if by ~= '' and ARGV[4] == '0' then
  return {'held', other}
end
redis.call('HSET', PINS, key, incarnation .. ' ' .. worker)
tell_holder(ARGV[1], key)
return {'done'}
