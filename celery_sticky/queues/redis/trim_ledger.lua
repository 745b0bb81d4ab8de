-- Forget runs that have finished before a time, a bounded number of them.
--
-- KEYS  ledger
-- ARGV  the time, most runs to forget
-- Reply the number forgotten

local done = KEYS[1] .. ':done'
local old = math.min(redis.call('ZCOUNT', done, '-inf', '(' .. ARGV[1]), tonumber(ARGV[2]))
return old > 0 and redis.call('ZREMRANGEBYRANK', done, 0, old - 1) or 0
