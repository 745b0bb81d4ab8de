import pytest
from celery.app.task import Context

from celery_sticky.bootsteps.request import _name_custom_headers

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "fields",
    [
        {"lang": "py", "task": "t", "id": "1", "sticky": {"key": "k"}, "tenant": "x", "none": None},
        {"id": "1", "timelimit": [3, 2], "headers": None, "argsrepr": "()", "own": 1},
        {"id": "1", "headers": {"own": 2}, "other": 3},
        {"id": "1"},
    ],
)
def test_a_task_sees_the_headers_that_celery_would_show_it(fields: dict[str, object]) -> None:
    ours = dict(fields)
    _name_custom_headers(ours)
    assert vars(Context(ours)) == vars(Context(dict(fields)))
