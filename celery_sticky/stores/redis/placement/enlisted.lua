-- Every worker with a worker queue, and its last incarnation.
return redis.call('HGETALL', ENLISTED)
