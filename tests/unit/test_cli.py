"""The commands of `celery sticky` against stores and queues in memory: what they say, and with which exit status."""

# Celery has no types.
# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_sticky import Keyspace, Sticky, jump, slot_for
from celery_sticky.cli import drain
from celery_sticky.cli.main import COMMANDS, sticky
from celery_sticky.cli.session import Session
from celery_sticky.keys import HASH_NAME, SlotId
from celery_sticky.message import Stamp
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import HAS_WORKER_QUEUE, Member, View
from celery_sticky.queues import Depth, Disposition, Outcome, Tenure, Want
from celery_sticky.queues.guarantees import FULL
from celery_sticky.queues.memory import MemoryQueues, process_broker
from celery_sticky.slots import KeyPlace, WorkerQueue
from celery_sticky.stores import PlacementStore
from celery_sticky.stores.jobs import NewJob
from celery_sticky.stores.memory.store import memory_server
from celery_sticky.stores.placement import Wish
from celery_sticky.testing.queue_steps import open_slot

SLOTS = 12
QUICK = ("--timeout", "0.01")


@pytest.fixture
def app() -> Iterator[Any]:
    made = Celery("shop", broker="memory://", set_as_current=False)
    made.conf.update(sticky_slots=SLOTS, sticky_lease_ttl=1.0, sticky_lease_margin=0.1)
    made.conf.sticky_key_prefix = f"cli-{uuid.uuid4().hex}"  # a store and a broker of its own
    Sticky(made)

    @made.task(name="sync", shared=False, key="tenant")
    def sync(tenant: str) -> None: ...

    yield made
    made.close()


@pytest.fixture
def session(app: Any) -> Iterator[Session]:
    with Session(app) as opened:
        yield opened


def run(app: Any, *words: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(sticky, words, obj=CLIContext(app, True, None), input=answer, catch_exceptions=False)


def facts(app: Any, *words: str, status: int = 0) -> Any:
    result = run(app, *words, "--json")
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def write(session: Session, *members: Member) -> View:
    store = session.store("default")
    reading = store.read()
    view = changes.fresh(slots=SLOTS, hash=HASH_NAME, generation=1, version=1, store_id=reading.store_id)
    for member in members:
        view = changes.join(view, member)
    assert store.swap(reading.view, view)
    return view


def envelope(key: str, task_id: str = "id-1", at: float = 0.0) -> bytes:
    stamp = Stamp(key, "default", slot_for(key, SLOTS), SLOTS, at or time.time())
    return json.dumps({
        "body": base64.b64encode(json.dumps([[key], {}, {}]).encode()).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"task": "sync", "id": task_id, "sticky": stamp.to_header()},
        "properties": {"correlation_id": task_id, "body_encoding": "base64", "priority": 0},
    }).encode()  # fmt: skip


def publish(session: Session, key: str, **options: Any) -> int:
    slot = slot_for(key, SLOTS)
    process_broker(session.settings.key_prefix).publish(("default", slot), envelope(key, **options))
    return slot


def bury(session: Session, key: str, task_id: str = "id-1") -> str:
    """Publish a message, fetch it as a worker would, and bury it; return what the command line calls it."""
    slot = publish(session, key, task_id=task_id)
    tenure = Tenure("default", slot, 1, uuid.uuid4().hex, 1)
    fence = process_broker(session.settings.key_prefix).slots["default", slot].fence
    if fence is not None:
        tenure = Tenure("default", slot, fence.epoch + 1, uuid.uuid4().hex, 1)
    queues = session.queues
    open_slot(queues, tenure)
    (delivery,) = queues.fetch([Want(tenure, 1)], [], time.time()).deliveries
    info = json.dumps({"reason": "it will not do", "task": "sync", "id": task_id, "key": key, "at": time.time()})
    disposition = Disposition(Outcome.BURY, tenure, delivery.tag, info=info)
    assert queues.fetch([], [disposition], time.time()).confirmed == [disposition]
    return f"default/{slot}-{delivery.tag.number}"


@contextmanager
def beating(session: Session, incarnation: str) -> Iterator[None]:
    """Heartbeat as a member would, while the block is open."""
    over = threading.Event()

    def heartbeat() -> None:
        while not over.wait(0.05):
            session.store("default").heartbeat(incarnation)

    thread = threading.Thread(target=heartbeat)
    thread.start()
    yield
    over.set()
    thread.join()


# -- The group ---------------------------------------------------------------------------------------


def test_help_lists_every_command_with_what_it_does(app: Any) -> None:
    listed = run(app, "--help").output
    assert all(f"\n  {name} " in listed for name in COMMANDS)


def test_celery_itself_does_not_pay_for_our_commands() -> None:
    program = (
        "import sys; import celery.bin.celery; print('rich' in sys.modules, 'celery_sticky.cli.main' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).split() == ["False", "True"]


@pytest.mark.parametrize("words", [("status",), ("owner", "7"), ("plan",), ("dead", "list"), ("doctor",), ("init",)])
def test_an_app_without_celery_sticky_is_told_in_one_line_how_to_name_one(words: tuple[str, ...]) -> None:
    result = run(Celery("plain", broker="memory://", set_as_current=False), *words)
    assert result.exit_code == 1
    assert result.output.startswith("Error: ") and result.output.count("\n") == 1
    assert "celery -A yourapp sticky" in result.output


def test_wrong_settings_are_told_in_one_line(app: Any) -> None:
    app.conf.sticky_slot = 5
    result = run(app, "status", *QUICK)
    assert result.exit_code == 1 and "did you mean 'sticky_slots'?" in result.output


# -- status ------------------------------------------------------------------------------------------


def test_status_of_a_keyspace_without_a_document_is_no_problem(app: Any) -> None:
    (found,) = facts(app, "status", *QUICK)["keyspaces"]
    assert (found["keyspace"], found["slots"], found["version"], found["members"]) == ("default", SLOTS, None, [])
    assert "no document yet" in run(app, "status", *QUICK).output


def test_status_counts_what_waits_and_how_long_the_oldest_has_waited(app: Any, session: Session) -> None:
    write(session)
    publish(session, "t-1", at=time.time() - 90)
    publish(session, "t-2")
    bury(session, "t-3")
    found = facts(app, "status", *QUICK, status=1)
    (keyspace,) = found["keyspaces"]
    assert (keyspace["waiting"], keyspace["in_flight"], keyspace["dead"]) == (2, 0, 1)
    assert 90 <= keyspace["oldest_seconds"] < 120
    assert found["problems"] == [f"keyspace default: messages wait, but {SLOTS} of {SLOTS} slots have no owner"]


def test_status_and_owner_show_a_dash_for_what_the_broker_cannot_count(
    app: Any, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    depths = MemoryQueues.depths

    def vague(self: MemoryQueues, slots: Collection[SlotId]) -> dict[SlotId, Depth]:
        found = depths(self, slots)
        return {slot: replace(one, deferred=None, in_flight=None) for slot, one in found.items()}

    monkeypatch.setattr(MemoryQueues, "depths", vague)
    write(session, Member("w1@here", "i-1"))
    publish(session, "t-1")
    (keyspace,) = facts(app, "status", *QUICK, status=1)["keyspaces"]
    assert (keyspace["waiting"], keyspace["deferred"], keyspace["in_flight"]) == (1, None, None)
    assert "), - deferred, - in flight" in run(app, "status", *QUICK).output
    assert ", - deferred, - in flight" in run(app, "owner", "t-1").output


def test_status_calls_a_member_silent_that_neither_answers_nor_beats(app: Any, session: Session) -> None:
    write(session, Member("w1@here", "i-1"))
    found = facts(app, "status", *QUICK, status=1)
    (member,) = found["keyspaces"][0]["members"]
    assert (member["name"], member["slots"], member["alive"], member["lease_age"]) == ("w1@here", SLOTS, False, None)
    assert found["problems"] == ["keyspace default: w1@here does not answer and sends no heartbeats"]


def test_status_sees_the_heartbeats_of_a_member_that_does_not_answer(app: Any, session: Session) -> None:
    write(session, Member("w1@here", "i-1"))
    with beating(session, "i-1"):
        (member,) = facts(app, "status", *QUICK)["keyspaces"][0]["members"]
    assert member["alive"] and member["running"] is None


def test_status_lists_the_slots_that_are_on_the_move(app: Any, session: Session) -> None:
    view = write(session, Member("a@h", "i-1"), Member("b@h", "i-2"))
    (found,) = facts(app, "status", *QUICK, status=1)["keyspaces"]
    moving = [slot for slot in range(SLOTS) if view.owner[slot] != view.target[slot]]
    assert moving and [one["slot"] for one in found["moving"]] == moving
    assert {(one["from"], one["to"]) for one in found["moving"]} == {("a@h", "b@h")}
    assert "6 slots are moving" in run(app, "status", *QUICK).output


def test_status_tells_a_document_of_another_run_of_the_store(app: Any, session: Session) -> None:
    write(session)
    memory_server(session.store_at.hostname or "", session.settings.key_prefix).restart()
    found = facts(app, "status", *QUICK, status=1)
    assert found["keyspaces"][0]["store_lost"] and "another run of the store" in found["problems"][0]


# -- owner -------------------------------------------------------------------------------------------


def test_owner_finds_slot_queue_and_owner_of_a_key(app: Any, session: Session) -> None:
    view = write(session, Member("w1@here", "i-1"))
    slot = publish(session, "t-7")
    found = facts(app, "owner", "t-7")
    assert (found["slot"], found["queue"]) == (slot, Sticky.of(app).queue_for("t-7"))
    assert (found["owner"], found["target"], found["epoch"]) == ("w1@here", "w1@here", view.epoch[slot])
    assert found["waiting"] == 1
    assert f"{slot} of {SLOTS}" in run(app, "owner", "t-7").output


def test_owner_exits_with_1_where_nobody_owns_the_key(app: Any, session: Session) -> None:
    write(session)
    assert facts(app, "owner", "t-7", status=1)["owner"] is None
    assert "nobody" in run(app, "owner", "t-7").output


def worker_queue(app: Any, session: Session, keyspace: Keyspace) -> tuple[View, PlacementStore]:
    """Declare a placed keyspace, with the workers `a@here` and `b@here`."""
    Sticky.of(app).keyspace(keyspace)
    session.settings = Sticky.of(app).settings
    store, placement_store = session.store(keyspace.name), session.placement_store(keyspace.name)
    view = changes.fresh(slots=SLOTS, hash=keyspace.hash_name, generation=1, version=1, store_id=store.read().store_id)
    for name in "ab":
        view = changes.join(view, Member(f"{name}@here", f"{name}-1", attributes={HAS_WORKER_QUEUE: "1"}))
        placement_store.enlist(f"{name}@here", f"{name}-1")
    assert store.swap(None, view)
    return view, placement_store


def test_owner_tells_where_a_pinned_key_goes_and_who_has_claimed_it(app: Any, session: Session) -> None:
    view, placement_store = worker_queue(app, session, Keyspace("clients", pins=True))
    words = ("owner", "t-7", "--keyspace", "clients")
    slot = slot_for("t-7", SLOTS)
    found = facts(app, *words)
    assert (found["by"], found["owner"], found["claimed_by"]) == ("slot", view.owner[slot], None)
    placement_store.pin("b@here", "t-7", take=False)
    placement_store.claim("a-1", 1, (view.version, view.generation), [Wish("t-7", "b-1", run=True)])
    process_broker(session.settings.key_prefix).publish(("clients", WorkerQueue("b@here")), envelope("t-7"))
    found = facts(app, *words)
    assert (found["by"], found["owner"], found["claimed_by"]) == ("pin", "b@here", "a@here")
    assert found["queue"].endswith(".clients.@b@here") and found["waiting"] == 1
    said = run(app, *words).output
    assert "b@here, which has pinned it" in said and "claimed by  a@here" in said


def test_owner_tells_why_a_key_belongs_nowhere(app: Any, session: Session) -> None:
    Sticky.of(app).keyspace(Keyspace("early", assign=jump))
    assert facts(app, "owner", "k", "--keyspace", "early", status=1)["owner"] is None
    assert "no worker has taken part" in run(app, "owner", "k", "--keyspace", "early").output
    worker_queue(app, session, Keyspace("strict", pins=True, unpinned="refuse"))
    assert facts(app, "owner", "k", "--keyspace", "strict", status=1)["queue"] is None
    assert "pinned by no live worker" in run(app, "owner", "k", "--keyspace", "strict").output


def test_pins_are_listed_by_keyspace_with_worker_age_and_token(app: Any, session: Session) -> None:
    assert run(app, "pins", "list").output == "no pins\n"
    _, clients = worker_queue(app, session, Keyspace("clients", pins=True))
    _, strict = worker_queue(app, session, Keyspace("strict", pins=True, unpinned="refuse"))
    made = {key: clients.pin("b@here", key, take=False) for key in ("t-8", "t-7")}
    strict.pin("a@here", "[red]k", take=False)
    found = facts(app, "pins", "list")["pins"]
    assert [(pin["keyspace"], pin["key"], pin["worker"]) for pin in found] == [
        ("clients", "t-7", "b@here"),
        ("clients", "t-8", "b@here"),
        ("strict", "[red]k", "a@here"),
    ]
    assert found[0]["token"] == made["t-7"].token and 0 <= found[0]["age"] < 60
    assert "[red]k" in run(app, "pins", "list").output
    assert [pin["key"] for pin in facts(app, "pins", "list", "--worker", "a@here")["pins"]] == ["[red]k"]
    assert len(facts(app, "pins", "list", "--keyspace", "clients")["pins"]) == 2
    refused = run(app, "pins", "list", "--keyspace", "default").output
    assert "keyspace 'default' does not allow pins" in refused


def test_a_pin_is_released_by_its_key_and_its_worker_has_lost_it(app: Any, session: Session) -> None:
    _, clients = worker_queue(app, session, Keyspace("clients", pins=True))
    pin = clients.pin("b@here", "t-7", take=False)
    words = ("pins", "release", "t-7", "--keyspace", "clients")
    refused = run(app, *words, "--token", str(pin.token - 1)).output
    assert f"is pinned by no live worker under token {pin.token - 1}" in refused
    assert run(app, *words).output == "released: key t-7 of keyspace clients was pinned by b@here\n"
    assert clients.lost("b@here", ["b-1"]) == {"t-7"}
    assert "is pinned by no live worker\n" in run(app, *words).output


def test_owner_names_the_function_that_says_where_a_key_goes(app: Any, session: Session) -> None:
    worker_queue(app, session, Keyspace("jumped", assign=jump, version="3"))
    found = facts(app, "owner", "k", "--keyspace", "jumped")
    assert found["by"] == "jump@3" and found["owner"] in ("a@here", "b@here")
    assert "chosen by jump@3" in run(app, "owner", "k", "--keyspace", "jumped").output


def test_status_tells_what_directs_keys_and_counts_worker_queues(app: Any, session: Session) -> None:
    view, _ = worker_queue(app, session, Keyspace("clients", assign=jump, pins=True))
    process_broker(session.settings.key_prefix).publish(("clients", WorkerQueue("b@here")), envelope("t-7"))
    found = next(one for one in facts(app, "status", *QUICK, status=1)["keyspaces"] if one["keyspace"] == "clients")
    assert found["placed_by"] == "pins and jump" and found["waiting"] == 1
    members = {member["name"]: (member["slots"], member["waiting"]) for member in found["members"]}
    assert members == {"a@here": (view.owner.count("a@here"), 0), "b@here": (view.owner.count("b@here"), 1)}
    assert "keys placed by pins and jump" in " ".join(run(app, "status", *QUICK).output.split())


@pytest.mark.parametrize("words", [("owner", ""), ("owner", "7", "--keyspace", "a.b"), ("plan", "--keyspace", "a.b")])
def test_what_cannot_be_a_key_or_a_keyspace_is_refused_in_one_line(app: Any, words: tuple[str, ...]) -> None:
    result = run(app, *words)
    assert result.exit_code == 1 and result.output.count("\n") == 1


# -- plan --------------------------------------------------------------------------------------------


def test_plan_tells_share_and_slots_and_changes_nothing(app: Any, session: Session) -> None:
    before = write(session, Member("a@h", "i-1"), Member("b@h", "i-2"))
    found = facts(app, "plan", "--add", "1")
    assert (found["moved"], found["minimum"], found["moved_share"]) == (4, 4, 4 / SLOTS)
    assert [(one["name"], one["slots_now"], one["slots_then"]) for one in found["members"]] == [
        ("a@h", 6, 4),
        ("b@h", 6, 4),
        ("new-1", 0, 4),
    ]
    assert session.store("default").read().view == before


def test_plan_foresees_that_one_leaves_and_a_heavier_one_comes(app: Any, session: Session) -> None:
    write(session, Member("a@h", "i-1"), Member("b@h", "i-2"))
    found = facts(app, "plan", "--remove", "a@h", "--add", "1", "--weight", "2")
    assert {one["name"]: one["slots_then"] for one in found["members"]} == {"a@h": 0, "b@h": 4, "new-1": 8}


def test_plan_refuses_a_worker_that_is_not_there_and_names_those_that_are(app: Any, session: Session) -> None:
    write(session, Member("a@h", "i-1"))
    result = run(app, "plan", "--remove", "z@h")
    assert result.exit_code == 1 and result.output == "Error: 'z@h' is not a member; the members are: a@h\n"


# -- dead --------------------------------------------------------------------------------------------


def test_buried_messages_are_listed_with_their_reason(app: Any, session: Session) -> None:
    assert "no buried messages" in run(app, "dead", "list").output
    name = bury(session, "t-1")
    (one,) = facts(app, "dead", "list")["messages"]
    assert (one["name"], one["task"], one["key"], one["id"]) == (name, "sync", "t-1", "id-1")
    assert "it will not do" in run(app, "dead", "list").output


def test_a_buried_message_is_shown_with_headers_and_arguments(app: Any, session: Session) -> None:
    name = bury(session, "t-1")
    found = facts(app, "dead", "show", name)
    assert json.loads(found["body"])[0] == ["t-1"] and found["headers"]["task"] == "sync"
    assert "it will not do" in run(app, "dead", "show", "id-1").output


@pytest.mark.parametrize("how", ["name", "id in its slot", "task id", "--all"])
def test_a_message_is_given_another_try_in_its_own_queue(app: Any, session: Session, how: str) -> None:
    name = bury(session, "t-1")
    word = {"name": name, "id in its slot": name.partition("/")[2], "task id": "id-1"}.get(how, how)
    (done,) = facts(app, "dead", "retry", word)["retried"]
    assert done == {"name": name, "queue": Sticky.of(app).queue_for("t-1")}
    slot = slot_for("t-1", SLOTS)
    assert session.queues.depths([("default", slot)])["default", slot].waiting == 1 and not session.queues.dead(
        "default"
    )


def test_a_list_is_a_page_and_says_where_the_next_one_begins(app: Any, session: Session) -> None:
    names = [bury(session, "t-1", f"id-{number}") for number in range(3)]
    page = facts(app, "dead", "list", "--limit", "2")
    assert ([one["name"] for one in page["messages"]], page["more"]) == (names[:2], True)
    assert f"--after {names[1]}" in run(app, "dead", "list", "--limit", "2").output
    page = facts(app, "dead", "list", "--limit", "2", "--after", names[1])
    assert ([one["name"] for one in page["messages"]], page["more"]) == (names[2:], False)


def test_doctor_tells_of_many_buried_messages_that_nothing_bounds(
    app: Any, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_sticky.cli.doctor.MANY", 2)
    for number in range(2):
        bury(session, "t-1", f"id-{number}")
    assert any("2 messages are buried" in one["text"] for one in facts(app, "doctor", *QUICK)["findings"])


def test_a_name_that_may_mean_two_messages_is_refused(app: Any, session: Session) -> None:
    names = [bury(session, "t-1", "same"), bury(session, "t-1", "same")]
    result = run(app, "dead", "drop", "same")
    assert result.exit_code == 1 and all(name in result.output for name in names)
    assert len(session.queues.dead("default")) == 2


def test_a_dropped_message_is_gone(app: Any, session: Session) -> None:
    name = bury(session, "t-1")
    assert facts(app, "dead", "drop", name)["dropped"] == [name]
    assert not session.queues.dead("default")
    assert run(app, "dead", "drop", name).exit_code == 1


def test_all_must_be_said_and_not_meant(app: Any) -> None:
    assert run(app, "dead", "drop").exit_code == 2
    assert run(app, "dead", "retry", "id-1", "--all").exit_code == 2


# -- init --------------------------------------------------------------------------------------------


def test_init_writes_the_first_document_and_no_second(app: Any, session: Session) -> None:
    (first,) = facts(app, "init")["keyspaces"]
    view = session.store("default").read().view
    assert first["written"] and view is not None and (view.slots, view.members) == (SLOTS, {})
    (second,) = facts(app, "init")["keyspaces"]
    assert not second["written"] and session.store("default").read().view == view


def test_init_begins_above_the_clock_of_the_store_where_no_broker_knows_epochs(
    app: Any, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgetful = replace(FULL, epochs_outlive_store=False)
    monkeypatch.setattr("celery_sticky.cli.init.guarantees_of", lambda connection: forgetful)
    before = time.time()
    assert run(app, "init").exit_code == 0
    view = session.store("default").read().view
    assert view is not None and min(view.epoch) >= int(before)


def test_init_by_force_asks_first_and_keeps_epochs_growing(app: Any, session: Session) -> None:
    old = write(session, Member("a@h", "i-1"))
    assert run(app, "init", "--force", answer="n\n").exit_code == 1
    assert session.store("default").read().view == old
    assert run(app, "init", "--force", "--yes").exit_code == 0
    new = session.store("default").read().view
    assert new is not None and not new.members
    assert new.generation > old.generation and min(new.epoch) > old.max_epoch


# -- doctor ------------------------------------------------------------------------------------------


def test_doctor_tells_effective_settings_and_where_they_come_from(app: Any, session: Session) -> None:
    write(session)
    found = facts(app, "doctor", *QUICK)
    settings = {one["name"]: (one["value"], one["source"]) for one in found["settings"]}
    assert settings["sticky_slots"] == (SLOTS, "app.conf") and settings["sticky_max_attempts"] == (5, "default")
    assert settings["sticky_store"][1] == "the broker"
    assert found["guarantees"] == json.loads(json.dumps(asdict(FULL)))
    promised = (
        "slot queues here: fenced, ordered, atomic, deferred, moves, counts starts, claims runs, epochs outlive store, "
        "exact idle"
    )
    assert f"{promised}; fence by epoch; priorities 0, 3, 6, 9" in " ".join(run(app, "doctor", *QUICK).output.split())
    assert found["tasks"] == [
        {
            "task": "sync",
            "key": "its key, the argument 'tenant'",
            "keyspace": "default",
            "serial": True,
            "delivery": "at_least_once",
            "dedupe": False,
        }
    ]
    assert "nothing is wrong" in run(app, "doctor", *QUICK).output


def wrongs(app: Any) -> list[str]:
    found = facts(app, "doctor", *QUICK, status=1)
    return [one["text"] for one in found["findings"] if one["level"] == "wrong"]


@pytest.mark.filterwarnings(r"ignore:\s*The 'queue' task attribute")
def test_doctor_objects_to_a_keyed_task_with_a_queue_of_its_own(app: Any) -> None:
    @app.task(name="own", shared=False, key="tenant", queue="mine")
    def own(tenant: str) -> None: ...

    assert any("task own is keyed but sets its own queue" in text for text in wrongs(app))


def test_doctor_objects_to_another_number_of_slots(app: Any, session: Session) -> None:
    write(session)
    app.conf.sticky_slots = 2 * SLOTS
    del vars(Sticky.of(app).wiring)["settings"]
    assert any(f"has {SLOTS} slots" in text for text in wrongs(app))


def test_doctor_finds_jobs_that_were_left_when_a_keyspace_became_plain_again(app: Any, session: Session) -> None:
    write(session)
    new = NewJob("feed", "k", KeyPlace("k"), "d1", b"1")
    session.job_store("default").admit(new, max_queued=9, outcome_ttl=60)
    said = "jobs: jobs that are stored by their keys do not run: they were dispatched while 'default' was"
    assert any(text.startswith(said) for text in wrongs(app))


def test_doctor_finds_jobs_that_were_left_when_a_keyspace_became_placed(app: Any, session: Session) -> None:
    session.job_store("clients").admit(NewJob("feed", "k", 1, "d1", b"1"), max_queued=9, outcome_ttl=60)
    Sticky.of(app).keyspace(Keyspace("clients", pins=True))
    assert any("job feed of key 'k' does not run: it was dispatched before" in text for text in wrongs(app))


def test_doctor_objects_to_the_first_task_protocol(app: Any) -> None:
    app.conf.task_protocol = 1
    assert any("task_protocol" in text for text in wrongs(app))


def test_doctor_notes_that_task_routes_do_not_count_for_keyed_tasks(app: Any) -> None:
    app.conf.update(task_routes={"sync": {"queue": "slow"}})
    found = facts(app, "doctor", *QUICK)
    assert any("the destination that task_routes gives it is ignored" in one["text"] for one in found["findings"])


def test_doctor_notes_members_of_another_version(app: Any, session: Session) -> None:
    write(session, Member("a@h", "i-1", attributes={"version": "0.0.1"}))
    found = facts(app, "doctor", *QUICK)
    assert any("members run release 0.0.1" in one["text"] for one in found["findings"])


# -- drain -----------------------------------------------------------------------------------------


def at_remote(app: Any, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> list[str]:
    """Have remote control answer so, one request after the other; return the commands that are asked."""
    asked: list[str] = []

    def broadcast(command: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(command)
        answer = answers[min(len(asked), len(answers)) - 1]
        return [] if answer is None else [{"w1@here": answer}]

    monkeypatch.setattr(app.control, "broadcast", broadcast)
    return asked


def described(*, drained: bool, **figures: int) -> dict[str, Any]:
    return {"keyspaces": {"default": {"drained": drained, "slots": 0, "moving": 0, "running": 0, **figures}}}


def test_drain_waits_until_everything_is_given_away(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "LOOK_EVERY", 0.001)
    busy = described(drained=False, slots=3, moving=2, running=1)
    asked = at_remote(app, monkeypatch, busy, busy, None, described(drained=True))
    result = run(app, "drain", "w1@here")
    assert result.exit_code == 0, result.output
    assert asked == ["sticky_drain", "sticky", "sticky", "sticky"]
    assert result.output.count("w1@here: slots left 5, keyed tasks running 1\n") == 1, "it is told once"
    assert "w1@here has given everything away" in result.output


def test_drain_tells_of_a_worker_that_has_gone(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "LOOK_EVERY", 0.001)
    at_remote(app, monkeypatch, described(drained=False, slots=3), None)
    result = run(app, "drain", "w1@here", "--json")
    assert (result.exit_code, result.output) == (
        1,
        "Error: worker 'w1@here' does not answer any more; a worker that restarts is not drained\n",
    )


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "worker 'w1@here' does not answer: give its whole node name"),
        ({"keyspaces": {}}, "worker 'w1@here' takes part in no keyspace"),
        ({"error": "unknown control command"}, "worker 'w1@here' cannot be drained: unknown control command"),
    ],
)
def test_drain_tells_which_worker_cannot_be_drained(
    app: Any, monkeypatch: pytest.MonkeyPatch, answer: Any, says: str
) -> None:
    at_remote(app, monkeypatch, answer)
    result = run(app, "drain", "w1@here")
    assert result.exit_code == 1 and says in result.output
