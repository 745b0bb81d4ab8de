"""MySQL 8 and MariaDB 10.6 or later, with PyMySQL. Tested with MariaDB only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from celery_sticky.errors import MissingDependency
from celery_sticky.sql.address import Address
from celery_sticky.sql.dialects.base import checked_options, joined, union_table
from celery_sticky.sql.link import Link
from celery_sticky.sql.text import Piece

try:
    import pymysql
except ImportError as error:
    raise MissingDependency("PyMySQL is not installed: pip install 'celery-sticky[mysql]'") from error

OPTIONS = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert", "ssl_verify_identity")


class MySQL:
    """See `Dialect`."""

    name = "mysql"
    begin = "START TRANSACTION"
    share, update = " LOCK IN SHARE MODE", " FOR UPDATE"
    skip = " FOR UPDATE SKIP LOCKED"
    join = "STRAIGHT_JOIN"
    or_nothing = " ON DUPLICATE KEY UPDATE queue = queue"
    row_values = False
    overlaps = True
    literal = "X'{}'"
    types: Mapping[str, str] = {
        "name": "varbinary(255)",
        "bytes": "longblob",
        "key": "varbinary(1024)",
        "slot": "varbinary(1025)",
        "double": "double",
        "serial": "bigint NOT NULL AUTO_INCREMENT",
        "message_key": "PRIMARY KEY (queue, priority, id), KEY (id)",
        "serial_key": "PRIMARY KEY (id)",
        "end": " ENGINE=InnoDB",
    }
    # NOW() and SYSDATE() are in the session's time zone, in which an hour of autumn comes twice.
    clock = portable_clock = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6)"
    server = "CONCAT_WS('.', @@server_id, @@hostname, @@port)"  # MariaDB has no `server_uuid`
    here = (
        "SELECT CONCAT(COALESCE(DATABASE(), 'none'), ' at ', @@hostname, ':', @@port, CHAR(10), IF(LOCATE('.', "
        f"'{{message}}'), SUBSTRING_INDEX('{{message}}', '.', 1), COALESCE(DATABASE(), '')), '.', {server})"
    )
    synchronous = "NULL"  # only `innodb_flush_log_at_trx_commit` of the server says so
    ordered = "NULL"
    errors: tuple[type[Exception], ...] = (pymysql.Error, OSError)

    def connect(self, address: Address, timeout: float) -> Link:
        """Connect."""
        given = {"host": address.host, "port": address.port, "user": address.user, "password": address.password}
        raw = pymysql.connect(
            database=address.database,
            autocommit=True,
            charset="utf8mb4",
            connect_timeout=timeout,
            read_timeout=timeout,
            write_timeout=timeout,
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            **{name: value for name, value in given.items() if value is not None},
            **dict(checked_options(address, OPTIONS)),
        )
        return Link(raw)

    def code(self, error: BaseException) -> str:
        """Return the error's number."""
        number = error.args[0] if isinstance(error, pymysql.Error) and error.args else ""
        return str(number)

    def upsert(self, keys: Sequence[str], columns: Sequence[str]) -> str:
        """See `Dialect.upsert`."""
        return " ON DUPLICATE KEY UPDATE " + ", ".join(f"{column} = VALUES({column})" for column in columns or keys)

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Piece:
        """See `Dialect.table`."""
        return union_table(name, columns, rows)

    def delete(self, table: str, keys: Sequence[str], rows: Sequence[Sequence[Any]]) -> Piece:
        """See `Dialect.delete`."""
        found, said = joined(self, table, keys, rows)
        return f"DELETE t FROM {found}", said

    def has_table(self, link: Link, table: str) -> bool:
        """See `Dialect.has_table`."""
        schema, _, name = table.rpartition(".")
        found = link.rows(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = COALESCE(%s, DATABASE()) "
            "AND table_name = %s",
            [schema or None, name],
        )
        return bool(found[0][0])

    @contextmanager
    def alone(self, link: Link, name: str, timeout: float) -> Iterator[None]:
        """Hold a lock of the session: DDL ends a transaction."""
        if link.rows("SELECT GET_LOCK(%s, %s)", [name, timeout / 2])[0][0] != 1:
            raise pymysql.err.OperationalError(1205, "another migration holds the lock")
        yield
        link.rows("SELECT RELEASE_LOCK(%s)", [name])

    def plain(self, link: Link) -> bool:
        """Return True: the session is set so."""
        return True

    def version(self, link: Link) -> int | None:
        """Return None: there is no such number."""
        return None

    def listener(self, address: Address, timeout: float, channel: str) -> None:
        """Return None: there is no bell."""
