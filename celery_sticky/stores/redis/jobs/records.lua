-- The records of a page.
--
-- KEYS  root
-- ARGV  the page, see `pages.lua`
-- Reply the page, then its records

local LARGE = 2048 -- bytes of payload and checkpoint that take as long as one more record
local reply = {}
local cursor, left = each_record(1, function(_, id)
    local found = fields(id)
    reply[#reply + 1] = found
    return 1 + (#found[5] + #(found[15] or '')) / LARGE
end)
return {cursor, left, reply}
