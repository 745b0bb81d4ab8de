-- Part of fetch: deferred messages return to their queue when they are due.

local WAKE = 256 -- most deferred messages that one request wakes
local woken = 0

-- A message that was deferred may have a priority that is no longer a step: have its list read too.
local function note_former(queue, has, priority)
    for _, step in ipairs(steps) do
        if step == priority then
            return
        end
    end
    local former = has.former and cjson.decode(has.former) or {}
    former[#former + 1] = priority
    has.former = cjson.encode(former)
    set_note(queue .. ':fence', 'former', has.former)
    has.more = true
    steps = steps_with(has.former)
end

-- Move due messages to the back of their lists, a bounded number; return whether all due ones were moved.
local function wake_part(queue, from, to, ahead, has)
    local key = queue .. ':deferred'
    local step = 8 -- small at first, since sizes are unknown
    while woken < WAKE and spent <= BUDGET do
        local members = redis.call('ZRANGEBYSCORE', key, from, to, 'LIMIT', 0, math.min(step, WAKE - woken))
        for _, member in ipairs(members) do
            local priority, body = string.match(member, '^%d+:(%d+):(.*)$')
            note_former(queue, has, priority)
            redis.call('LPUSH', list(queue, priority) .. ahead, body)
            spent = spent + #member
        end
        if #members > 0 then
            redis.call('ZREM', key, unpack(members))
        end
        woken = woken + #members
        if #members < step then
            break
        end
        step = step * 2
    end
    return redis.call('ZCOUNT', key, from, to) == 0
end

-- More messages are due than one request may wake. Those in the queue now precede them, those published later follow:
-- rename the lists, which costs nothing, and let the next requests fill the new ones from the deferred messages.
local function cut(queue, has)
    for _, priority in ipairs(steps) do
        if redis.call('EXISTS', list(queue, priority)) == 1 then
            redis.call('RENAME', list(queue, priority), list(queue, priority) .. ':ahead')
        end
    end
    set_note(queue .. ':fence', 'cut', now)
    has.cut, has.more = now, true
end

local function end_cut(queue, has)
    for _, priority in ipairs(steps) do
        if redis.call('EXISTS', list(queue, priority) .. ':ahead') == 1 then
            return
        end
    end
    redis.call('HDEL', queue .. ':fence', 'cut')
    has.cut = nil
end

-- Return when the next message is due ('': none). Messages due before the cut precede those in the lists.
local function wake_deferred(queue, has)
    local key = queue .. ':deferred'
    for _, priority in ipairs(steps) do
        redis.call('LLEN', list(queue, priority)) -- fail on a list of a wrong type before anything has moved
    end
    if not has.cut and redis.call('ZCOUNT', key, '-inf', now) > WAKE then
        cut(queue, has)
    end
    has.whole = not has.cut or wake_part(queue, '-inf', has.cut, ':ahead', has)
    if has.whole then
        wake_part(queue, has.cut and '(' .. has.cut or '-inf', now, '', has)
    end
    local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if not first[1] then
        redis.call('HDEL', queue .. ':fence', 'deferred')
        return ''
    end
    spent = spent + #first[1]
    return first[2]
end
