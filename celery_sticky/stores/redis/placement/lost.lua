-- Keys whose pins some incarnations of a worker lost, except those that it pinned again.
-- ARGV: worker, incarnations
local found = {}
for i = 2, #ARGV do
  for _, key in ipairs(redis.call('SMEMBERS', LOST .. ARGV[i])) do
    local _, worker = pinned(key)
    if worker ~= ARGV[1] then
      found[#found + 1] = key
    end
  end
end
return found
