-- Forget lost pins that the worker knows of.
-- ARGV: how many incarnations, incarnations, keys
local first_key = 2 + tonumber(ARGV[1])
for i = 2, first_key - 1 do
  for k = first_key, #ARGV do
    forget_lost(ARGV[i], ARGV[k])
  end
end
return 1
