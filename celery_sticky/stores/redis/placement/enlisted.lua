-- Every worker that has a worker queue, and its last incarnation.
return redis.call('HGETALL', ENLISTED)
