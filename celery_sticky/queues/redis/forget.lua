-- Forget a run. Deletions are allowed on a server that is out of memory.
--
-- KEYS  ledger
-- ARGV  run

-- include ledger

touch_ledger(KEYS[1])
forget(KEYS[1], ARGV[1])
