"""`celery -A yourapp sticky …`: look at who owns what, mend what is broken. One command a file."""
