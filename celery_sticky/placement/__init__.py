"""Loop 3: keys that belong to workers instead of slots: decided, claimed, moved."""
