"""Which libfaketime `verify` gives to workers."""

from pathlib import Path

import pytest

from celery_sticky.cli.verify import faketime

pytestmark = pytest.mark.unit


def test_a_library_that_does_not_do_its_work_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "libfaketime.so.1"
    broken.write_bytes(b"")
    assert faketime.first_that_works([broken]) is None
    monkeypatch.setattr(faketime, "libraries", lambda: [broken])
    monkeypatch.setattr(faketime, "libfaketime", lambda: None)
    assert faketime.why_not() == f"{broken} breaks Python's time.sleep: pip install libfaketime"
    monkeypatch.setattr(faketime, "libraries", list)
    assert faketime.why_not() == "libfaketime is not installed"


@pytest.mark.skipif(faketime.libfaketime() is None, reason="this machine has no libfaketime that works")
def test_the_one_that_works_is_found_behind_one_that_does_not(tmp_path: Path) -> None:
    works = faketime.libfaketime()
    assert works is not None and faketime.why_not() is None
    assert faketime.first_that_works([tmp_path / "none.so", Path(works)]) == works
