-- Pin a key for a worker.
-- ARGV: channel, worker, key, take ('1' or '0')
-- Reply: {'gone'}, {'done'}, or {'held', the worker that has it}
local channel, worker, key = ARGV[1], ARGV[2], ARGV[3]
local incarnation = redis.call('HGET', ENLISTED, worker)
if not incarnation or not may_act(incarnation) then
  return {'gone'}
end
local former, other = pinner(key)
if former == incarnation then
  return {'done'}
end
if former and ARGV[4] == '0' and lives(former) then
  return {'held', other}
end
redis.call('SREM', LOST .. incarnation, key) -- first: frees memory, so a server that is out of it accepts the writes
if former and other ~= worker then
  note_lost(former, key)
end
redis.call('HSET', PINS, key, incarnation .. ' ' .. worker)
local _, held_by = holder(key)
tell(channel, key, held_by, former)
return {'done'}
