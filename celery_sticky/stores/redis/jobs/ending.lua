-- The number of records that are stopping, or that replace a job of which a run may be left.
--
-- KEYS  root
-- Reply the number

return redis.call('SCARD', root .. ':ending')
