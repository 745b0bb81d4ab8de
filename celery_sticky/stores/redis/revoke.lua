-- Remember task ids until they expire, only the newest of them. Scores are microseconds on the server's clock.
-- KEYS: revoked    ARGV: ttl in microseconds, limit, task ids
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local expires = now + tonumber(ARGV[1])
-- First: a server that is out of memory refuses writes that grow data until the script has freed memory.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
for i = 3, #ARGV do
  redis.call('ZADD', KEYS[1], string.format('%.0f', expires), ARGV[i])
end
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[2])
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
if last[2] then
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', tonumber(last[2]) / 1000 + 1))
end
return redis.status_reply('OK')
