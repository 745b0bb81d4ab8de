"""The operating system: native threads, processes, what is away for a while."""
