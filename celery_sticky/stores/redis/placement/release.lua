-- Release keys.
-- ARGV: incarnation, call, keys
if not in_turn(ARGV[1], ARGV[2]) then
  return 0
end
for i = 3, #ARGV do
  local _, held_by = holder(ARGV[i])
  if held_by == ARGV[1] then
    redis.call('HDEL', CLAIMS, ARGV[i])
  end
end
return 1
