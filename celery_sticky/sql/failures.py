"""What the errors of a database mean, for people: one table for the drivers of all three kinds.

Every error of a driver means that a request may or may not have taken effect, and that its connection is in an unknown
state: the connection is dropped, and the caller gets `BrokerUnavailable` or `StoreUnavailable`. The table adds the
remedy to the text.
"""

from __future__ import annotations

import re

ADVICE = (
    (r"25006", "it is a standby, or read-only; connecting again to find the primary"),
    (r"40P01|40001|1213", "it ended this request to resolve a conflict with another; it is tried again"),
    (r"1205|55P03", "another transaction held a lock for too long"),
    (r"57P0\d|08\w{3}|2006|2013|1053|1927", "the connection was ended; connecting again"),
    (r"53100|1021|1114|3675|SQLITE_FULL", "its disk is full; make room there"),
    (r"53300|1040|1203", "it accepts no more connections; raise its limit, or find out who holds them"),
    (r"53\w{3}|1037|1038|1041", "it is short of a resource; see its log"),
    (r"1290|1792|1836|SQLITE_READONLY\w*", "it is read-only; connecting again in case it changes"),
    (r"SQLITE_BUSY\w*|SQLITE_LOCKED\w*", "another program holds the file's lock"),
    (r"SQLITE_CANTOPEN\w*", "the file or its folder cannot be opened; check the path and its permissions"),
    (r"SQLITE_IOERR\w*|58030", "its disk fails; check it"),
    (r"SQLITE_CORRUPT\w*|SQLITE_NOTADB|XX001|XX002", "the file is damaged; restore it from a backup"),
    (r"42501|1142|1044|1227", "grant the user the missing permission"),
    (r"28\w{3}|1045", "correct the user and password in the URL"),
    (r"3D000|1049", "create the database, or correct its name in the URL"),
    (r"42P01|1146", "its tables are missing; they are created with the next connection"),
)
"""Error codes (SQLSTATE of PostgreSQL, numbers of MySQL, names of SQLite) and what to do."""

REFUSALS = re.compile(
    r"(22|23|44|45|54|P0)\w{3}|1048|1062|1153|1264|1366|1406|1451|1452|1644|3819|4025"
    r"|SQLITE_CONSTRAINT\w*|SQLITE_TOOBIG|SQLITE_MISMATCH"
)
"""Codes with which a database refuses a statement for its data: a constraint, a trigger, a value too long."""

_KNOWN = [(re.compile(codes), advice) for codes, advice in ADVICE]


def is_refusal(code: str) -> bool:
    """Return whether an error with this code is about the data of a statement: its transaction has had no effect."""
    return REFUSALS.fullmatch(code) is not None


def describe(error: BaseException, code: str) -> str:
    """Return an error with this code as one line, with the remedy if there is a known one."""
    said = " ".join(str(error).split()) or type(error).__name__
    named = f"{code} {said}" if code and code not in said else said
    advice = next((advice for codes, advice in _KNOWN if codes.fullmatch(code)), None)
    return f"{named.rstrip('.')}: {advice}" if advice is not None else named
