"""A worker that has but a job host: `python -m harness.host_parent <log> <seconds of trust> <how> <job>…`.

It writes down all that the host says, and ends when its input does. How: `plain`, `gevent` or `eventlet` (patched), or
`fork` (another process has its end of the socket too).
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
    subprocess.run([sys.executable, "-c", ""], check=True)  # from now on gevent's hub reaps whatever child dies
    host = TestHost(Path(log), trust=float(trust))
    say(f"host {host.process.pid}")
    refs = [host.start(name, f"k{number}", {}) for number, name in enumerate(jobs)]
    for ref in refs:
        host.wait(ref, Started(ref))
    host.wait_ready()
    if how == "fork" and os.fork() == 0:
        time.sleep(3600)
    say("ready")
    sys.stdin.read()
    host.stop(*refs)
    for ref in refs:
        host.wait_over(ref)
    host.process.close(20)
    say(f"exit {host.wait_exit()}")


def say(line: str) -> None:
    """Tell the test."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *sys.argv[3:])
