"""`celery sticky demo`: run real workers on a real server, kill one, add one, and check the recorded history."""
