-- Some of the pins of live workers.
-- ARGV: cursor, batch size
-- Reply: the next cursor ('0' at the end), the time, then for each pin: key, worker, incarnation, token
local page = redis.call('HSCAN', PINS, ARGV[1], 'COUNT', ARGV[2])
local reply = {page[1], written(now_ms())}
for i = 1, #page[2], 2 do
  local incarnation, worker, token = parsed(page[2][i + 1])
  if incarnation and lives(incarnation) then
    for _, part in ipairs({page[2][i], worker, incarnation, token}) do
      reply[#reply + 1] = part
    end
  end
end
return reply
