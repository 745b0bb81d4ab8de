"""The memory in which a worker's children read what they may trust."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

from celery_sticky.membership.lease import NEVER, Lease, boottime

KEYSPACES = {"default": 9, "second": 70}


@pytest.fixture(params=["in memory", "in a file"])
def lease(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lease:
    if request.param == "in a file":
        monkeypatch.delattr(os, "memfd_create")
    return Lease(KEYSPACES)


def test_what_one_process_grants_another_one_that_attached_reads(lease: Lease) -> None:
    there = Lease.attach(lease.descriptor, KEYSPACES)
    assert there.until("default") == NEVER and not there.trusted("second")
    lease.grant("second", boottime() + 60, 3)
    lease.mark("second", 69, open_here=True)
    assert there.membership("second") == 3 and there.trusted("second", 3) and not there.trusted("second", 2)
    assert there.owns("second", 69) and not there.owns("second", 68)
    assert not there.trusted("default", 0)
    lease.close()
    assert not there.trusted("second")


READER = """
import json, sys
from celery_sticky.membership.lease import Lease
lease = Lease.attach(int(sys.argv[1]), json.loads(sys.argv[2]))
print(lease.membership("second"), lease.trusted("second"))
"""


def test_a_program_that_is_given_the_descriptor_attaches_it(lease: Lease) -> None:
    lease.grant("second", boottime() + 60, 3)
    command = [sys.executable, "-c", READER, str(lease.descriptor), '{"default": 9, "second": 70}']
    assert not os.get_inheritable(lease.descriptor)
    done = subprocess.run(command, pass_fds=[lease.descriptor], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["3", "True"]


FORKER = """
import os
from celery_sticky.membership.lease import Lease, boottime
lease, (granted, grants) = Lease({"default": 9}), os.pipe()
child = os.fork()
if child == 0:
    os.close(grants)
    os.read(granted, 1)
    os._exit(0 if lease.trusted("default", 5) else 1)
lease.grant("default", boottime() + 60, 5)
os.close(grants)
print(os.waitpid(child, 0)[1])
"""


def test_a_forked_child_has_it_as_it_is() -> None:
    command = [sys.executable, "-c", FORKER]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip() == "0"


def test_who_has_attached_it_can_grant_nothing(lease: Lease) -> None:
    there = Lease.attach(lease.descriptor, KEYSPACES)
    with pytest.raises(TypeError, match="read"):
        there.grant("default", boottime() + 60, 1)
    with pytest.raises(TypeError, match="read"):
        there.mark("default", 0, open_here=True)
    assert not lease.trusted("default")


def test_the_memory_of_other_keyspaces_is_refused_where_it_is_too_small(lease: Lease) -> None:
    with pytest.raises(ValueError, match="length"):
        Lease.attach(lease.descriptor, {**KEYSPACES, "third": 1})


def test_the_file_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir(tempfile.gettempdir()))
    monkeypatch.delattr(os, "memfd_create")
    lease = Lease(KEYSPACES)
    left = [name for name in set(os.listdir(tempfile.gettempdir())) - before if "sticky-lease" in name]
    assert not left and os.fstat(lease.descriptor).st_nlink == 0
