-- Prepended, behind `record.lua`, to the scripts that go through the records of a keyspace, a page at a time.
--
-- ARGV, behind those of the script: size of a page, cursor in the first slot, the slots to go through (none: all)
-- Reply first the cursor in the first slot that is left, then the slots that are left. '' stands for the places of all
--       keys, which may be too many for one reply.
--
-- A cursor is that of HSCAN. But HSCAN returns a small hash in one piece, however many entries it is asked for. Such a
-- piece is sorted by the SHA-1 of the fields and cut; then the cursor is '>' and the SHA-1 of the last field.

local function by_rank(a, b)
    return a.rank < b.rank
end

-- Return entries of a hash from a cursor on, about `count` of them, and the cursor behind them.
local function scan(key, cursor, count)
    local last = string.match(cursor, '^>(.*)')
    local from = last and '0' or cursor
    local upto, flat = unpack(redis.call('HSCAN', key, from, 'COUNT', count))
    local whole = from == '0' and upto == '0'
    local cut, found = whole and (last or #flat / 2 > count), {}
    for i = 1, #flat, 2 do
        local rank = cut and redis.sha1hex(flat[i])
        if not (cut and last) or rank > last then
            found[#found + 1] = {field = flat[i], value = flat[i + 1], rank = rank}
        end
    end
    if not cut or #found <= count then
        return found, upto
    end
    table.sort(found, by_rank)
    for i = #found, count + 1, -1 do
        found[i] = nil
    end
    return found, '>' .. found[count].rank
end

-- Call `visit` with slot and id of about `count` records of a slot. Return how many records take so long, and the
-- cursor.
local function visit_slot(slot, cursor, count, visit)
    local found, on = scan(slot_key(slot), cursor, count)
    local seen = 1 -- a slot without records takes time too
    for _, entry in ipairs(found) do
        seen = seen + (visit(slot, entry.value) or 1)
    end
    return seen, on
end

-- As `visit_slot`, for places of keys. Each has one record of a few names at most.
local function visit_places(cursor, count, visit)
    local found, on = scan(root .. ':places', cursor, math.ceil(count / 2))
    local seen = 1
    for _, entry in ipairs(found) do
        seen = seen + 1
        for _, id in ipairs(entry.field ~= '' and redis.call('HVALS', slot_key(entry.field)) or {}) do
            seen = seen + (visit(entry.field, id) or 1)
        end
    end
    return seen, on
end

-- Call `visit` with slot and id of each record of this page; it may return a size, if that of a record is not 1. `at` is
-- where the arguments of the page begin. Return the first two parts of the reply. A record that stays in the keyspace
-- is visited in one of the pages; in several of them if a hash shrinks meanwhile.
local function each_record(at, visit)
    local size, cursor = tonumber(ARGV[at]), ARGV[at + 1]
    local slots = ARGV[at + 2] and {unpack(ARGV, at + 2)} or redis.call('HKEYS', root .. ':revisions')
    slots[#slots + 1] = not ARGV[at + 2] and '' or nil
    local left, seen = {}, 0
    for _, slot in ipairs(slots) do
        local done = false
        while not done and seen < size do
            local count, more = math.ceil(size - seen), 0
            if slot == '' then
                more, cursor = visit_places(cursor, count, visit)
            else
                more, cursor = visit_slot(slot, cursor, count, visit)
            end
            seen, done = seen + more, cursor == '0'
        end
        if not done then
            left[#left + 1] = slot
        end
    end
    return cursor, left
end

