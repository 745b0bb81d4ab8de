-- Every worker with a direct queue, and its last incarnation.
return redis.call('HGETALL', ENLISTED)
