"""The lock file of a name: where it cannot be had, and what is said then."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from celery_sticky.errors import InvalidSettings, NameTaken
from celery_sticky.membership.name_lock import NameLock, runtime_dir

SAID = "Set sticky_runtime_dir"


def name_lock(folder: Path | None) -> NameLock:
    return NameLock(folder, "store", "ks", "w1@here")


def test_a_name_is_taken_once_and_names_who_died(tmp_path: Path) -> None:
    first, second = name_lock(tmp_path), name_lock(tmp_path)
    assert first.acquire() == ""
    first.write("w1-1")
    with pytest.raises(NameTaken):
        second.acquire()
    first.release()
    assert second.acquire() == "w1-1"
    second.release()


@pytest.mark.parametrize("what", ["none", "file", "read only"])
def test_without_a_temporary_folder_a_worker_starts_and_says_what_is_lost(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if what == "none":
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "nowhere")])
    elif what == "file":
        (tmp_path / f"celery-sticky-{os.getuid()}").write_text("in the way")
    else:  # to root every folder is writable, but on a read-only file system
        monkeypatch.setattr(os, "access", lambda *_: False)
    folder = runtime_dir(None)
    assert folder is None and SAID in caplog.text
    lock = name_lock(folder)
    assert lock.acquire() == ""
    lock.write("w1-1")
    lock.release()


def test_a_configured_folder_that_cannot_be_used_is_refused_by_the_settings_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InvalidSettings, match=r"sticky_runtime_dir is .*file.*cannot be used"):
        runtime_dir(str(tmp_path / "file" / "below"))


def test_a_file_system_without_locks_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = name_lock(tmp_path)
    assert lock.acquire() == "" and "No locks available" in caplog.text
    lock.write("w1-1")


def test_a_full_disk_keeps_nobody_from_joining(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lock = name_lock(tmp_path)
    lock.acquire()
    monkeypatch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
    lock.write("w1-1")
    assert "No space left" in caplog.text and SAID in caplog.text
    lock.release()
