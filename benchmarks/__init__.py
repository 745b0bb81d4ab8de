"""Benchmarks beside stock Celery on one private server: `python -m benchmarks`. See the README beside this file."""
