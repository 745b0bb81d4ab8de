-- Claim the current period of a ticker, unless it or a later one is claimed.
--
-- KEYS  root
-- ARGV  name, period (milliseconds)
-- Reply 1 or 0, and the milliseconds until the next period begins

local time, every = redis.call('TIME'), tonumber(ARGV[2])
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local begins = now - now % every
local last = tonumber(redis.call('HGET', root .. ':ticks', ARGV[1]))
local future = last and last > now
if future or not last or last < begins then
    redis.call('HDEL', root .. ':ticks', ARGV[1]) -- first: frees memory, so a full server accepts the write
    redis.call('HSET', root .. ':ticks', ARGV[1], string.format('%.0f', begins))
end
return {not future and (not last or last < begins) and 1 or 0, begins + every - now}
