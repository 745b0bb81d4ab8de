"""Loop 3: keys that belong to workers instead of slots. It decides where they go, claims them and moves them."""
