-- Prepended to every script of the placement store. All keys of a keyspace, in one order:
--   <root>:view       hash  the ownership document: version, generation, store_id, document
--   <root>:beats      hash  incarnation -> heartbeat counter: an incarnation with a counter is live
--   <root>:claims     hash  key -> '<token> <incarnation>' that may run it
--   <root>:pins       hash  key -> '<incarnation> <worker>\n<token>' that pinned it; without '\n<token>': token 0
--   <root>:enlisted   hash  worker -> its last incarnation
--   <root>:calls      hash  incarnation -> number of its last call; '' -> the last token of a claim or pin
--   <root>:lost:<incarnation>         set   keys whose pins others or a sweep took from it; kept for a day
--   <root>:lost:<incarnation>:tokens  hash  key -> token of that pin
local VIEW, BEATS, CLAIMS, PINS, ENLISTED, CALLS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local LOST, KEPT = KEYS[7] .. ':', 86400

local function lives(incarnation)
  return redis.call('HEXISTS', BEATS, incarnation) == 1
end

-- The incarnation, worker and token in a record of a pin.
local function parsed(pin)
  local incarnation, worker, token = string.match(pin or '', '^(%S+) ([^\n]*)\n?(%d*)$')
  return incarnation, worker, token == '' and '0' or token
end

-- The recorded incarnation, worker and token that pinned a key, live or not.
local function pinner(key)
  return parsed(redis.call('HGET', PINS, key))
end

-- The incarnation and worker that pinned a key; '' if no live one has.
local function pinned(key)
  local incarnation, worker = pinner(key)
  if incarnation and lives(incarnation) then
    return incarnation, worker
  end
  return '', ''
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The last token, or the time if that is higher: the next token is one more. Tokens grow even if the store is lost.
local function last_token()
  return math.max(tonumber(redis.call('HGET', CALLS, '') or 0), now_ms())
end

local function written(token)
  return string.format('%.0f', token)
end

local function holder(key)
  return string.match(redis.call('HGET', CLAIMS, key) or '', '^(%S+) (.*)$')
end

-- Whether the document differs from the known one; and the document, if it does.
local function compared(version, generation)
  local stored = redis.call('HMGET', VIEW, 'version', 'generation')
  if (stored[1] or '0') == version and (stored[2] or '0') == generation then
    return false, false
  end
  return true, redis.call('HGET', VIEW, 'document')
end

-- Whether this is a member of the keyspace in this run of the server; another run may have lost claims still in use.
local function may_act(incarnation)
  return lives(incarnation) and redis.call('HGET', VIEW, 'store_id') == run_id()
end

-- Signal that the pin of a key changed, with the live ones of these incarnations.
local function tell(channel, key, held_by, former)
  local concerned = {}
  if held_by and lives(held_by) then
    concerned[1] = held_by
  end
  if former and former ~= held_by and lives(former) then
    concerned[#concerned + 1] = former
  end
  redis.call('PUBLISH', channel, 'pin:' .. table.concat(concerned, ',') .. ':' .. key)
end

local function note_lost(incarnation, key, token)
  local lost = LOST .. incarnation
  redis.call('SADD', lost, key)
  redis.call('EXPIRE', lost, KEPT)
  redis.call('HSET', lost .. ':tokens', key, token)
  redis.call('EXPIRE', lost .. ':tokens', KEPT)
end

local function forget_lost(incarnation, key)
  redis.call('SREM', LOST .. incarnation, key)
  redis.call('HDEL', LOST .. incarnation .. ':tokens', key)
end

-- Write a field of a hash. A server that is out of memory refuses writes that grow data until the script has freed
-- memory.
local function put(hash, field, value)
  redis.call('HDEL', hash, field)
  redis.call('HSET', hash, field, value)
end

local function in_turn(incarnation, call)
  if tonumber(redis.call('HGET', CALLS, incarnation) or 0) >= tonumber(call) then
    return false
  end
  put(CALLS, incarnation, call)
  return true
end
