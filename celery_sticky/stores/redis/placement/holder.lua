-- The incarnation that claimed a key; '' if no live one has.
-- ARGV: key
local _, held_by = holder(ARGV[1])
return held_by and lives(held_by) and held_by or ''
