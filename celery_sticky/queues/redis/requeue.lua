-- Requeue a buried message at the back of its slot queue, and forget its run.
--
-- KEYS  dead, queue, ledger
-- ARGV  separator, dead id, run ('': the ledger does not know it)
-- Reply 1, or 0 if there is no such message, or an error as text

-- include prelude
-- include ledger

write_first()

local dead, queue, ledger, separator, id, run = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3]
local value = redis.call('HGET', dead, id)
if not value then
    return 0
end
if run ~= '' then
    local done, err = pcall(touch_ledger, ledger)
    if not done then
        return explained(err, queue, separator, {}, ledger_keys(ledger))
    end
end
local body = body_of(value)
redis.call('LPUSH', list_of(queue, separator, string.match(value, '^%d+')), body)
if referred(body) then
    register_body(queue, referred(body))
end
redis.call('HDEL', dead, id)
redis.call('HDEL', dead .. ':info', id)
redis.call('ZREM', dead .. ':order', id)
if run ~= '' then
    forget(ledger, run)
end
return 1
