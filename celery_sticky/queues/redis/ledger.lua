-- The ledger of a keyspace: which runs are claimed, by which delivery, and when those that have finished did so.
--
-- A run is in one of two keys: <ledger>, a hash with the holder's field, or <ledger>:done, a sorted set.

local function ledger_keys(ledger)
    return {{ledger, 'hash'}, {ledger .. ':done', 'zset'}}
end

-- Nothing may fail after a message has left: access the ledger first, so that a wrong type fails here.
local function touch_ledger(ledger)
    redis.call('HLEN', ledger)
    redis.call('ZCARD', ledger .. ':done')
end

-- Return the field of the delivery that holds the run, in a table that is empty if the run has finished.
local function claim(ledger, run, field, once)
    if redis.call('ZSCORE', ledger .. ':done', run) then
        return {}
    end
    if not once or redis.call('HSETNX', ledger, run, field) == 1 then
        return {field}
    end
    return {redis.call('HGET', ledger, run)}
end

-- Delete a claim that this delivery holds, or one of the earlier ones (a JSON list of fields; '': there are none).
local function give_back(ledger, run, field, earlier)
    local holder = redis.call('HGET', ledger, run)
    local held = holder == field
    for _, other in ipairs(earlier == '' and {} or cjson.decode(earlier)) do
        held = held or holder == other
    end
    if held then
        redis.call('HDEL', ledger, run)
    end
end

local function finish(ledger, run, at)
    redis.call('HDEL', ledger, run)
    redis.call('ZADD', ledger .. ':done', at, run)
end

local function forget(ledger, run)
    redis.call('HDEL', ledger, run)
    redis.call('ZREM', ledger .. ':done', run)
end
