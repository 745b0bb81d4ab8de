-- The document, if it is not the known one, and who has pinned some keys.
-- ARGV: known version, known generation, keys
-- Reply: 1 or 0 (changed), document (nil: none, or as known), the incarnation for each key ('': nobody)
local changed, document = compared(ARGV[1], ARGV[2])
local reply = {changed and 1 or 0, document}
for i = 3, #ARGV do
  reply[#reply + 1] = (pinned(ARGV[i]))
end
return reply
