-- Pin a key for a worker.
-- ARGV: worker, key, take ('1' or '0')
-- Reply: {'gone'}, {'done'}, or {'held', the worker that has it}
local incarnation = redis.call('HGET', ENLISTED, ARGV[1])
if not incarnation or not may_act(incarnation) then
  return {'gone'}
end
local by, worker = pinned(ARGV[2])
if by ~= '' and by ~= incarnation and ARGV[3] == '0' then
  return {'held', worker}
end
redis.call('HSET', PINS, ARGV[2], incarnation .. ' ' .. ARGV[1])
return {'done'}
