"""By what name a job host loads the app of its worker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from celery import Celery
from celery._state import set_default_app
from celery.app.utils import find_app

from celery_sticky.errors import StickyError
from celery_sticky.execution.job_host import app_name


@pytest.fixture
def app() -> Celery:
    return Celery("shop", set_as_current=False)


@pytest.fixture
def shop(app: Celery, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The loaded module `shop_app`, whose attribute `shop` is the app; another app is what `-A shop_app` would find."""
    module = ModuleType("shop_app")
    module.__dict__.update(app=Celery("decoy", set_as_current=False), shop=app)
    monkeypatch.setitem(sys.modules, "shop_app", module)
    return module


@pytest.mark.parametrize(
    "arguments",
    [
        ["-A", "shop_app:shop", "worker", "-A", "shop_app"],
        ["-Ashop_app:shop", "worker"],
        ["-q", "--app=shop_app:shop", "worker"],
        ["--app", "shop_app:shop"],
        ["-qA", "shop_app:shop", "worker", "-P", "gevent"],
    ],
)
def test_it_is_what_the_worker_was_started_with(app: Celery, shop: ModuleType, arguments: list[str]) -> None:
    shop.__dict__["again"] = shop.__dict__.pop("shop")  # nothing is found where it says, so
    assert app_name(app, arguments=arguments) == "shop_app:again"
    shop.__dict__["shop"] = app
    assert app_name(app, arguments=arguments) == "shop_app:shop"


def test_a_name_without_an_attribute_is_resolved_as_celery_does(app: Celery, shop: ModuleType) -> None:
    assert app_name(app, arguments=["-A", "shop_app", "worker"]) == "shop_app:shop", "the decoy is another app"
    shop.__dict__["app"] = app
    assert app_name(app, arguments=["-A", "shop_app", "worker"]) == "shop_app"


@pytest.mark.parametrize("variable", ["APP", "CELERY_APP"])
def test_it_may_be_in_the_environment(
    app: Celery, shop: ModuleType, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.__dict__["app"] = app
    monkeypatch.setenv(variable, "shop_app")
    assert app_name(app, arguments=["worker"]) == "shop_app"


def test_the_setting_goes_before_all(app: Celery, shop: ModuleType) -> None:
    assert app_name(app, "elsewhere:app", ["-A", "shop_app:shop"]) == "elsewhere:app"


@pytest.mark.parametrize("arguments", [[], ["-A", "gone_app"], ["-x", "--what"], ["-A"], ["/some/test.py"]])
def test_otherwise_it_is_looked_for_in_the_loaded_modules(app: Celery, shop: ModuleType, arguments: list[str]) -> None:
    name = app_name(app, arguments=arguments)
    assert name == "shop_app:shop" and find_app(name) is app


def test_nothing_is_imported_to_find_it(
    app: Celery, shop: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "never_app.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    assert app_name(app, arguments=["-A", "never_app"]) == "shop_app:shop"


@pytest.fixture
def default_app(app: Celery) -> Iterator[None]:
    set_default_app(app)
    yield
    set_default_app(None)


@pytest.mark.usefixtures("default_app")
def test_where_it_is_not_to_be_found_the_setting_is_named(app: Celery) -> None:
    """Guards: Celery itself has the app at hand, under a name that in another process is another app's."""
    with pytest.raises(StickyError, match="sticky_job_app = "):
        app_name(app, arguments=[])


SCRIPT = """
from celery import Celery
from celery_sticky.execution.job_host import app_name
shop = Celery("shop")
if __name__ == "__main__":
    print(app_name(shop, arguments=[]))
"""


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["shop_main.py"], "shop_main:shop"),
        (["-m", "shop_main"], "shop_main:shop"),
        (["-m", "package.start"], "package.start:shop"),
        (["-m", "package"], "package.__main__:shop"),
    ],
)
def test_a_main_module_has_a_name_too(tmp_path: Path, command: list[str], name: str) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for path in (tmp_path / "shop_main.py", package / "start.py", package / "__main__.py"):
        path.write_text(SCRIPT)
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == name
    load = f"from celery.app.utils import find_app; assert find_app({name!r}).main == 'shop'"
    subprocess.run([sys.executable, "-c", load], cwd=tmp_path, check=True)


def test_a_script_that_cannot_be_imported_has_none(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "shop_main.py").write_text(SCRIPT)
    command = [sys.executable, "sub/shop_main.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "sticky_job_app" in done.stderr
