-- Remove the records of a page that are stored at keys' places.
--
-- KEYS  root
-- ARGV  the page, see `pages.lua`
-- Reply the page, then the number of records that were removed

local count = 0
local cursor, left = each_record(1, function(slot, id)
    if is_place(slot) then
        remove(slot, id, 'stopped before it started')
        count = count + 1
    end
end)
forget_vacant()
return {cursor, left, count}
