"""The steps from an empty database to this release's schema, in order; a released step never changes.

A statement names tables as `{message}` and types as `:bytes:` (see `Dialect.types`). Where DDL ends a transaction, a
step that was interrupted is run again: so every statement must be one that can be repeated. A step for some dialects
only is a mapping from their names.
"""

from collections.abc import Mapping, Sequence

from celery_sticky.sql.migrations.m0001_slot_queues import STATEMENTS as SLOT_QUEUES
from celery_sticky.sql.migrations.m0002_ownership import STATEMENTS as OWNERSHIP
from celery_sticky.sql.migrations.m0003_ordinary_queues import STATEMENTS as ORDINARY_QUEUES
from celery_sticky.sql.migrations.m0004_jobs import STATEMENTS as JOBS
from celery_sticky.sql.migrations.m0005_ledger import STATEMENTS as LEDGER
from celery_sticky.sql.migrations.m0006_vacuum import STATEMENTS as VACUUM

Step = Sequence[str] | Mapping[str, Sequence[str]]
MIGRATIONS: tuple[Step, ...] = (SLOT_QUEUES, OWNERSHIP, ORDINARY_QUEUES, JOBS, LEDGER, VACUUM)
"""`MIGRATIONS[n]` leads from version n to version n + 1."""
