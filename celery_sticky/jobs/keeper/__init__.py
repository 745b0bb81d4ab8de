"""The worker's end of keyed jobs: what the store wants, what the job host runs, and the difference."""
