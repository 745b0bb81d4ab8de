"""What worker and system tests drive: real servers and real worker processes, never left behind."""
