"""Stores in memory: the references that the contracts are written from."""
