"""`celery sticky verify`: run real workers under load, inject faults, and check the recorded history."""
