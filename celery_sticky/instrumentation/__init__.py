"""Reports of what happened in a worker, as data, for logs, metrics and traces. Nothing is called if nobody listens."""
