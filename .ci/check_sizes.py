"""Refuse functions over 50 lines, and files over 300 lines without a stated reason to be one file."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FUNCTION, FILE = 50, 300

ONE_IDEA = {
    "celery_sticky/delivery/gate.py": "which entry may start: one lock a key, one state machine an entry",
    "celery_sticky/delivery/key_claims.py": "which keys of placed keyspaces this worker may run",
    "celery_sticky/delivery/slots.py": "where each slot of a worker stands, from its first opening to its end here",
    "celery_sticky/delivery/state.py": "the messages of a worker, from the fetch to the confirmed disposition",
    "celery_sticky/jobs/client.py": "what an app calls for its jobs",
    "celery_sticky/jobs/keeper/reconciler.py": "the difference between wanted and running jobs, and what follows",
    "celery_sticky/ownership/machine.py": "one member's state machine: events in, effects out",
    "celery_sticky/queues/base.py": "the contract of slot queues, with the requests and answers it speaks of",
    "celery_sticky/settings.py": "every setting, with its check and its description",
    "celery_sticky/stores/jobs.py": "the contract of a job store, with the records and the answers it speaks of",
    "celery_sticky/stores/memory/jobs.py": "the verbs of a job store, in the form against which drivers are compared",
    "celery_sticky/testing/queue_settle_contract.py": "the half of the queue contract about dispositions",
}
"""Files of the package over 300 lines, each with the one idea that holds it together."""


def own_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without those of functions and classes defined in it."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    inner = [node for node in ast.walk(function) if isinstance(node, kinds) and node is not function]
    lines = set(range(function.lineno, (function.end_lineno or 0) + 1))
    for node in inner:
        lines -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def findings(name: str) -> Iterator[str]:
    """Yield what is too long in one file."""
    text = Path(name).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (lines := own_lines(node)) > FUNCTION:
            yield f"{name}:{node.lineno}: {node.name} has {lines} lines; split it"
    lines = text.count("\n")
    if name.startswith("celery_sticky/") and (lines > FILE) != (name in ONE_IDEA):
        yield (
            f"{name} has {lines} lines: split it, or say its one idea in {Path(__file__).name}"
            if lines > FILE
            else (f"{name} has only {lines} lines: remove it from {Path(__file__).name}")
        )


def main() -> int:
    """Print what is too long; exit with 1 if there is anything."""
    files = subprocess.run(["git", "ls-files", "*.py"], check=True, capture_output=True, text=True).stdout.split()
    found = [finding for name in files if Path(name).exists() for finding in findings(name)]
    gone = [name for name in ONE_IDEA if not Path(name).exists()]
    found += [f"{name} is gone: remove it from {Path(__file__).name}" for name in gone]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
