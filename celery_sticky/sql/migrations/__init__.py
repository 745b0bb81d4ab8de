"""The steps from an empty database to this release's schema, in order; a released step never changes.

A statement names tables as `{message}` and types as `:bytes:` (see `Dialect.types`). Where DDL ends a transaction, a
step that was interrupted is run again: so every statement must be one that can be repeated.
"""

from celery_sticky.sql.migrations.m0001_slot_queues import STATEMENTS as SLOT_QUEUES
from celery_sticky.sql.migrations.m0002_ownership import STATEMENTS as OWNERSHIP
from celery_sticky.sql.migrations.m0003_ordinary_queues import STATEMENTS as ORDINARY_QUEUES
from celery_sticky.sql.migrations.m0004_jobs import STATEMENTS as JOBS
from celery_sticky.sql.migrations.m0005_ledger import STATEMENTS as LEDGER

MIGRATIONS = (SLOT_QUEUES, OWNERSHIP, ORDINARY_QUEUES, JOBS, LEDGER)
"""`MIGRATIONS[n]` leads from version n to version n + 1."""
