"""`celery sticky demo`: real workers on a real server, one killed and one joining, and a verdict from the history."""
