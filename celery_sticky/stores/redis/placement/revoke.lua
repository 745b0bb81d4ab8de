-- End the pin of a key on behalf of somebody else: its worker has lost it.
-- ARGV: channel, key, token ('': any)
-- Reply: the name of the live worker that had it; '' if there is no such pin
local channel, key, token = ARGV[1], ARGV[2], ARGV[3]
local by, worker, current = pinner(key)
if not by or not lives(by) or (token ~= '' and current ~= token) then
  return ''
end
redis.call('HDEL', PINS, key)
note_lost(by, key, current)
local _, held_by = holder(key)
tell(channel, key, held_by, by)
return worker
