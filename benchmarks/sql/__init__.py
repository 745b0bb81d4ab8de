"""Benchmarks of a SQL database as the broker, beside Redis, RabbitMQ and Kombu's own SQLAlchemy transport."""
