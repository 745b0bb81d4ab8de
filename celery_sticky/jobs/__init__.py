"""Long-running work with a key: wanted in the store, run by whichever worker owns the key."""
