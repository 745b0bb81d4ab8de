-- Drop a dead note.
--
-- KEYS  root
-- ARGV  entry
-- Reply 1, or 0 if there is no such note

return drop_dead(ARGV[1]) and 1 or 0
