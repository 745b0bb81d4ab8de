"""The job host's end: the process that runs jobs, and one run of a job in it."""
