-- Pin a key for a worker, under a new token.
-- ARGV: channel, worker, key, take ('1' or '0')
-- Reply: {'gone'}, {'done', token, incarnation}, or {'held', the worker that has it}
local channel, worker, key = ARGV[1], ARGV[2], ARGV[3]
local incarnation = redis.call('HGET', ENLISTED, worker)
if not incarnation or not may_act(incarnation) then
  return {'gone'}
end
local former, other, former_token = pinner(key)
if former and former ~= incarnation and ARGV[4] == '0' and lives(former) then
  return {'held', other}
end
forget_lost(incarnation, key) -- first: frees memory, so a server that is out of it accepts the writes
if former and other ~= worker then
  note_lost(former, key, former_token)
end
local token = written(last_token() + 1)
put(CALLS, '', token)
put(PINS, key, incarnation .. ' ' .. worker .. '\n' .. token)
if former ~= incarnation then
  local _, held_by = holder(key)
  tell(channel, key, held_by, former)
end
return {'done', token, incarnation}
