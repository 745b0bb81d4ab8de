-- Remove a pin, if it is this worker's and, where a token is given, this one.
-- ARGV: channel, worker, key, token ('': any), its incarnation
-- Reply: 1, or 0 if that pin does not hold the key now
local channel, worker, key, token, incarnation = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if token == '' then
  incarnation = redis.call('HGET', ENLISTED, worker)
end
if not incarnation then
  return 0
end
local lost = redis.call('HGET', LOST .. incarnation .. ':tokens', key)
if token == '' or not lost or lost == token then
  forget_lost(incarnation, key)
end
local by, _, current = pinner(key)
if by ~= incarnation or (token ~= '' and current ~= token) then
  return 0
end
redis.call('HDEL', PINS, key)
local _, held_by = holder(key)
tell(channel, key, held_by)
return 1
