"""A worker reduced to its job host: `python -m harness.host_parent <log> <seconds of trust> <how> <job>…`.

It prints the pid of the host, `ready` and the exit status of the host, and ends when its input ends. `how` is `plain`,
`gevent` or `eventlet` (patched), or `fork` (a forked process also holds the worker's end of the socket).
"""

from __future__ import annotations

import sys
from importlib import import_module

if sys.argv[3] == "gevent":
    import_module("gevent.monkey").patch_all()
elif sys.argv[3] == "eventlet":
    import_module("eventlet").monkey_patch()

import os
import subprocess
import time
from pathlib import Path

from celery_sticky.jobs.wire import Started
from harness.host import TestHost


def main(log: str, trust: str, how: str, *jobs: str) -> None:
    """Start the jobs, then stop them when the input ends."""
    subprocess.run([sys.executable, "-c", ""], check=True)  # from here on, gevent's hub reaps every child that dies
    host = TestHost(Path(log), trust=float(trust))
    say(f"host {host.process.pid}")
    refs = [host.start(name, f"k{number}", {}) for number, name in enumerate(jobs)]
    for ref in refs:
        host.wait(ref, Started(ref))
    host.wait_ready()
    if how == "fork" and os.fork() == 0:
        time.sleep(3600)  # holds the socket until the end of the test
    say("ready")
    sys.stdin.read()
    host.stop(*refs)
    for ref in refs:
        host.wait_over(ref)
    host.process.close(20)
    say(f"exit {host.wait_exit()}")


def say(line: str) -> None:
    """Print a line for the test."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *sys.argv[3:])
