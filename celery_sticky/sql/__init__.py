"""SQL databases: addresses, connections with a deadline, dialects, and the schema with its migrations.

`Database` is one thread's connection; `dialects` says how PostgreSQL, MySQL or MariaDB, and SQLite differ.
"""

from celery_sticky.sql.address import Address
from celery_sticky.sql.database import Database, Runner, Transaction, Writer

__all__ = ["Address", "Database", "Runner", "Transaction", "Writer"]
