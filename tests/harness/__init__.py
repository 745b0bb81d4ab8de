"""Real servers, worker processes and test apps for the worker and system tests; nothing outlives a test."""
