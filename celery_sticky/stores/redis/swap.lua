-- Replace the document, and with it the counters, if it is still the one the caller read.
-- KEYS: view, beats, heard
-- ARGV: channel, new store id, latest time (microseconds, by TIME; '': any),
--       old version, old generation ('' and '' for no document),
--       new version, new generation, new document,
--       number of guards, then incarnation and counter of each, then the incarnations of the new document
if run_id() ~= ARGV[2] then
  return 0
end
local stored = redis.call('HMGET', KEYS[1], 'version', 'generation')
if (stored[1] or '') ~= ARGV[4] or (stored[2] or '') ~= ARGV[5] then
  return 0
end
if ARGV[3] ~= '' then
  local time = redis.call('TIME')
  if time[1] * 1000000 + time[2] > tonumber(ARGV[3]) then
    return 0
  end
end
local first_member = 10 + 2 * tonumber(ARGV[9])
for i = 10, first_member - 1, 2 do
  if redis.call('HGET', KEYS[2], ARGV[i]) ~= ARGV[i + 1] then
    return 0
  end
end

-- First: a server that is out of memory refuses writes that grow data until the script has freed memory.
redis.call('HDEL', KEYS[1], 'document')
redis.call('HSET', KEYS[1],
  'version', ARGV[6], 'generation', ARGV[7], 'store_id', ARGV[2], 'document', ARGV[8])
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local member = {}
for i = first_member, #ARGV do
  member[ARGV[i]] = true
  redis.call('HSETNX', KEYS[2], ARGV[i], 0)
  redis.call('HSETNX', KEYS[3], ARGV[i], now)
end
for _, hash in ipairs({KEYS[2], KEYS[3]}) do
  for _, incarnation in ipairs(redis.call('HKEYS', hash)) do
    if not member[incarnation] then
      redis.call('HDEL', hash, incarnation)
    end
  end
end
redis.call('PUBLISH', ARGV[1], 'changed:' .. ARGV[6])
return 1
