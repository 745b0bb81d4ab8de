-- The incarnation that has claimed a key; '' where none that lives has.
-- ARGV: key
local _, held_by = holder(ARGV[1])
return held_by and lives(held_by) and held_by or ''
