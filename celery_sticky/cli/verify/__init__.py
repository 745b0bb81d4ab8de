"""`celery sticky verify`: real workers under load and faults, judged from the history they wrote."""
