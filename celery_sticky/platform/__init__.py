"""Operating system services: native threads, processes, and reports of servers that do not answer."""
