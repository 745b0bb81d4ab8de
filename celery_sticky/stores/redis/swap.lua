-- Replace the document, and with it the counters, if it is still the one the caller read.
-- KEYS: view, beats
-- ARGV: channel, new store id, old version, old generation ('' and '' for no document),
--       new version, new generation, new document,
--       number of guards, then incarnation and counter of each, then the incarnations of the new document
if run_id() ~= ARGV[2] then
  return 0
end
local stored = redis.call('HMGET', KEYS[1], 'version', 'generation')
if (stored[1] or '') ~= ARGV[3] or (stored[2] or '') ~= ARGV[4] then
  return 0
end
local first_member = 9 + 2 * tonumber(ARGV[8])
for i = 9, first_member - 1, 2 do
  if redis.call('HGET', KEYS[2], ARGV[i]) ~= ARGV[i + 1] then
    return 0
  end
end

-- First: a server that is out of memory refuses writes that grow data until the script has freed memory.
redis.call('HDEL', KEYS[1], 'document')
redis.call('HSET', KEYS[1],
  'version', ARGV[5], 'generation', ARGV[6], 'store_id', ARGV[2], 'document', ARGV[7])
local member = {}
for i = first_member, #ARGV do
  member[ARGV[i]] = true
  redis.call('HSETNX', KEYS[2], ARGV[i], 0)
end
for _, incarnation in ipairs(redis.call('HKEYS', KEYS[2])) do
  if not member[incarnation] then
    redis.call('HDEL', KEYS[2], incarnation)
  end
end
redis.call('PUBLISH', ARGV[1], 'changed:' .. ARGV[5])
return 1
