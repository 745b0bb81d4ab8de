-- The document, if it differs from the known one, and the pins of some keys.
-- ARGV: known version, known generation, keys
-- Reply: 1 or 0 (changed), document (nil: none, or unchanged), the incarnation for each key ('': none)
local changed, document = compared(ARGV[1], ARGV[2])
local reply = {changed and 1 or 0, document}
for i = 3, #ARGV do
  reply[#reply + 1] = (pinned(ARGV[i]))
end
return reply
