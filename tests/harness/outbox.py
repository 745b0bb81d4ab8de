"""An app with a database as its broker, for tests of `sticky.outbox`, and what is in its tables."""

from __future__ import annotations

import json
from typing import Any

from celery import Celery

from celery_sticky import Sticky
from celery_sticky.errors import BrokerUnavailable
from celery_sticky.sql import Address, Database


class Shop:
    """The app, its tasks, and a connection of its own to the database."""

    def __init__(self, broker: str, **conf: Any) -> None:
        self.app = Celery("shop", broker=broker, set_as_current=False)
        self.app.conf.update(task_ignore_result=True, **conf)
        self.sticky = Sticky(self.app)

        @self.app.task(name="plain", shared=False)
        def plain(n: int) -> int:
            return n

        @self.app.task(name="keyed", key="k", shared=False)
        def keyed(k: str, n: int) -> int:
            return n

        self.plain, self.keyed = plain, keyed
        options = self.app.conf.broker_transport_options
        self.database = Database(
            Address.parse(broker), timeout=20.0, unavailable=BrokerUnavailable, prefix=options["table_prefix"]
        )
        self.database.rows("SELECT 1")

    def sent(self, table: str = "message") -> list[Any]:
        """Return the last argument of each task whose row others can see, in order."""
        order = "id" if table == "message" else "due"
        rows = self.database.rows(f"SELECT body FROM {{{table}}} ORDER BY {order}")
        return [json.loads(json.loads(bytes(row[0]))["body"])[0][-1] for row in rows]

    def count(self, table: str) -> int:
        """Return the number of rows that others can see."""
        return int(self.database.rows(f"SELECT COUNT(*) FROM {{{table}}}")[0][0])

    def close(self) -> None:
        """Close what is open."""
        self.database.close()
        self.app.close()
