-- Part of fetch: the notes in a slot's fence, and the names of its lists.

local function list(queue, priority)
    return list_of(queue, separator, priority)
end

-- The fence notes what a slot may have (`has`): marks, deferred messages, big bodies. Most slots have none of these.
local function note(queue, has, name)
    if not has[name] then
        set_note(queue .. ':fence', name, 1)
        has[name], has.more = true, true
    end
end

-- Messages may be in lists of earlier priority steps: these lists are read as well.
local function steps_with(former)
    local every = cjson.decode(former)
    for _, priority in ipairs(configured) do
        every[#every + 1] = priority
    end
    table.sort(every, function(a, b) return tonumber(a) < tonumber(b) end)
    return every
end

-- Return the notes of the slot. `more`: its fence has some.
local function read_notes(queue, more)
    local has = {queue = queue, flight = queue .. ':flight', more = more, whole = true}
    if more then
        local values = redis.call('HMGET', queue .. ':fence', unpack(MORE))
        for i, name in ipairs(MORE) do
            has[name] = values[i] or nil
        end
    end
    steps = has.former and steps_with(has.former) or configured
    return has
end
