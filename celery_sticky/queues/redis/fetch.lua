-- Apply dispositions and move messages into flight, for any number of tenures at once, within a bounded time.
--
-- KEYS  the queue of each tenure
-- ARGV  now, separator, priority steps (JSON list of strings), then for each tenure:
--       epoch, incarnation, open count, limit (-1: no fetch), number of dispositions, and for each disposition
--         'a' .. field                              ack
--         'm' .. field, starts                      mark
--         'u' .. field, starts                      unmark
--         'd' .. field, due, body ('': unchanged)   defer
--         'b' .. field, dead key, dead id, info     bury
--         'f' .. field, queue, body ('': unchanged) move there
--         'c' .. field, '1' or '0', ledger, run     claim a run, or only ask whether it has finished
--         'g' .. field, earlier, ledger, run        give the claim of a run back
--         'A', 'D', 'B', 'F': the same as in lower case, with two more arguments: ledger and run; before them 'F' has
--         earlier: the fields of earlier deliveries of the message (JSON list of strings; '': none)
--       and, if fetching, the name of this trip
--       where a field names a delivery: its number, ':', and the name of the trip that fetched it
-- Reply for each tenure, flat: 0 if the fence is not this tenure, else 1 (or an error as text, and nothing more for it)
--       for each disposition: 0 refused, else 1 (mark: starts counted so far; claim: a list with the field of the delivery that
--         holds the run, empty if the run has finished), -1 not now: send it again, or an error
--       if fetching: an error as text, or 1 if the queue is empty now else 0, when the next deferred message is due
--         ('': there is none), the list whose first message is too big for a script ('': none),
--         number of messages, number of the first, each message as '<priority>:<body>' or '<priority>,<marks>:<body>'

local reply, answered = {}, 0
local function say(item)
    answered = answered + 1
    reply[answered] = item
end

-- Most requests of a busy worker carry only acks: do not create the closures that only other requests need.
local function load_rest()
    -- include prelude

    local now, separator, configured = ARGV[1], ARGV[2], cjson.decode(ARGV[3])
    local steps = configured -- the steps of the current slot
    local spent = 0 -- bytes of the budget
    -- The number of arguments of each disposition.
    local arguments = {a = 1, m = 2, u = 2, d = 3, b = 4, f = 3, c = 4, g = 4, A = 3, D = 5, B = 6, F = 6}

    -- include notes
    -- include ledger
    -- include dispositions
    -- include deferred
    -- include messages

    write_first()
    return {
        arguments = arguments,
        read_notes = read_notes,
        settle = settle_safely,
        take = take_safely,
        explained = function(err, queue) return explained(err, queue, separator, configured) end,
    }
end

local loaded
local function rest()
    loaded = loaded or load_rest()
    return loaded
end

local at = 4
for _, queue in ipairs(KEYS) do
    local fence = redis.pcall('HMGET', queue .. ':fence', 'epoch', 'incarnation', 'count', 'more')
    local held = fence[1] == ARGV[at] and fence[2] == ARGV[at + 1] and fence[3] == ARGV[at + 2]
    local has = held and fence[4] and rest().read_notes(queue, true)
    held = held and not (has and has.opening)
    say(held and 1 or fence.err and rest().explained(fence, queue) or 0)
    local tenure, flight = at, queue .. ':flight'
    at = at + 5
    for _ = 1, ARGV[tenure + 4] do
        local act = string.sub(ARGV[at], 1, 1)
        if held then
            -- An ack nearly always concerns this one record only. An error is met again, and explained, in `settle`.
            local answer = act == 'a' and not (has and has.more) and redis.pcall('HDEL', flight, string.sub(ARGV[at], 2))
            if type(answer) ~= 'number' then
                has = has or rest().read_notes(queue, false)
                answer = rest().settle(queue, act, at, has)
            end
            say(answer)
        end
        at = at + (act == 'a' and 1 or rest().arguments[act])
    end
    local limit = tonumber(ARGV[tenure + 3])
    if limit >= 0 then
        if held then
            rest().take(queue, limit, has or rest().read_notes(queue, false), ARGV[at])
        end
        at = at + 1
    end
end
return reply
