-- Functions and constants that the scripts share.
--
-- No script reads or moves a body of more than BIG bytes: Lua copies it several times, at 2 to 3 ms per megabyte. A
-- bigger one has a list of its own, `<queue>:body:…`; queue, flight, deferred and dead hold a reference to it.

local BIG = 262144
local BUDGET = 524288 -- bytes that one script reads, 2 to 5 ms; the rest comes with the next request
local REFERENCE = '\0sticky-body:'

-- A server that is out of memory lets a script write nothing that may grow until it has written something else. Each of
-- these scripts grows the stored data by at most a few bytes per message, and all of them help messages to leave.
local function write_first()
    redis.call('DEL', KEYS[1] .. ':nothing')
end

local function list_of(queue, separator, priority)
    return priority == '0' and queue or queue .. separator .. priority
end

local function body_of(value)
    return string.sub(value, string.find(value, ':', 1, true) + 1)
end

-- Return a message's name in the record of counted starts. SHA-1 in Lua takes 5 ms per megabyte, so for a long body
-- only its ends are hashed: they contain the task's id and the number of its publishing.
local END = 4096
local function digest_of(body)
    if #body > 2 * END then
        body = #body .. ':' .. string.sub(body, 1, END) .. string.sub(body, -END)
    end
    return redis.sha1hex(body)
end

-- Return the key of the body that a reference names, or nil.
local function referred(body)
    if string.sub(body, 1, #REFERENCE) == REFERENCE then
        return string.sub(body, #REFERENCE + 1)
    end
end

-- The notes that a fence may have of its slot. Most fences have none, and no `more`: a fetch then checks no further.
local MORE = {'opening', 'marks', 'deferred', 'big', 'heavy', 'light', 'cut', 'former'}

-- Set every note through this function: without `more` nobody would read it.
local function set_note(fence, name, value)
    redis.call('HSET', fence, name, value, 'more', 1)
end

-- Remove `more` from a fence that has no notes left.
local function note_less(fence)
    local notes = redis.call('HMGET', fence, unpack(MORE))
    for i = 1, #MORE do
        if notes[i] then
            return
        end
    end
    redis.call('HDEL', fence, 'more')
end

-- Register a body whose reference is in a slot, so that a sweep finds the bodies that a purge leaves behind.
local function register_body(queue, key)
    redis.call('SADD', queue .. ':big', key)
    set_note(queue .. ':fence', 'big', 1)
end

local function text_of(err)
    return type(err) == 'table' and tostring(err.err) or tostring(err)
end

-- Return the error with its key: a server says only that some key has a wrong type.
local function explained(err, queue, separator, steps, others)
    local wanted = {{queue .. ':fence', 'hash'}, {queue .. ':flight', 'hash'}, {queue .. ':deferred', 'zset'},
                    {queue .. ':marks', 'hash'}, {queue .. ':big', 'set'}}
    for _, priority in ipairs(steps) do
        local list = list_of(queue, separator, priority)
        wanted[#wanted + 1] = {list, 'list'}
        wanted[#wanted + 1] = {list .. ':ahead', 'list'}
    end
    for _, other in ipairs(others or {}) do
        wanted[#wanted + 1] = other
    end
    for _, one in ipairs(wanted) do
        local told, found = pcall(redis.call, 'TYPE', one[1])
        local kind = told and (type(found) == 'table' and found.ok or found)
        if kind and kind ~= 'none' and kind ~= one[2] then
            return 'key ' .. one[1] .. ' is a ' .. kind .. ', not a ' .. one[2]
        end
    end
    return text_of(err)
end

local MOST_REFERENCE = 1024 -- bytes: longer values are not references, and need not be read to know that

local function drop_dead(dead, id)
    local key = redis.call('HSTRLEN', dead, id) <= MOST_REFERENCE and redis.call('HGET', dead, id)
    key = key and referred(body_of(key))
    if key then
        redis.call('UNLINK', key)
    end
    redis.call('HDEL', dead, id)
    redis.call('HDEL', dead .. ':info', id)
end
