-- The record of a name and key.
--
-- KEYS  root
-- ARGV  slot, name, key
-- Reply the fields of the record; nil: there is none

local id = redis.call('HGET', slot_key(ARGV[1]), place_of(ARGV[2], ARGV[3]))
return id and fields(id)
