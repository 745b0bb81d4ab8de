-- Remove, in batches, entries of incarnations that are no longer live.
-- ARGV: cursor, batch size
-- Reply: the next cursor; '0' at the end
local function sweep(hash, start, count, incarnation_of, note)
  local page = redis.call('HSCAN', hash, start, 'COUNT', count)
  for i = 1, #page[2], 2 do
    local incarnation = incarnation_of(page[2][i], page[2][i + 1])
    if incarnation ~= '' and not lives(incarnation) then
      redis.call('HDEL', hash, page[2][i])
      if note then
        note(incarnation, page[2][i], page[2][i + 1])
      end
    end
  end
  return page[1]
end

-- One cursor for two hashes: the pins follow after the claims.
local which, start = string.match(ARGV[1], '^(%a?)(%d+)$')
if which ~= 'p' then
  local on = sweep(CLAIMS, start, ARGV[2], function(_, value) return string.match(value, '^%S+ (.*)$') end)
  return on == '0' and 'p0' or on
end
local function pin_of(_, value)
  return string.match(value, '^%S+')
end
local function note_pin(incarnation, key, value)
  local _, _, token = parsed(value)
  note_lost(incarnation, key, token)
end
local on = sweep(PINS, start, ARGV[2], pin_of, note_pin)
if on == '0' then
  sweep(CALLS, '0', 100000, function(incarnation) return incarnation end)
  return '0'
end
return 'p' .. on
