-- Prepended to every script whose reply says which run of the server answered.
-- It is read inside the script, so that no reconnect, failover or proxy can come between the answer and its server.
-- It costs the server about 10 microseconds.
local function run_id()
  local info = redis.pcall('INFO', 'server')
  if type(info) == 'table' then
    error('the Redis user must be allowed the command INFO, by which a restarted server is told'
      .. ' (ACL SETUSER ... +info): ' .. tostring(info.err))
  end
  return string.match(info, 'run_id:(%x+)')
end
