"""Fixtures for tests of real worker processes under real faults.

Each rule of the protocol has a test that fails when the rule is removed from the code:

    rule removed                                  test that fails
    trust ends without a renewal                  servers: cut_off_from_the_store[cut] (the task is not ended)
    evict only after ttl + margin                 servers: cut_off_from_the_store[silence] (the next owner is too early)
    the counter guards the eviction               unit/test_machine: the_counter_that_stood_still_guards_the_eviction
    stopwatches restart after a gap               unit/test_machine: stopwatches_start_again_after_a_gap
    a gone incarnation is not revived             contract/test_stores: a_refused_swap_and_a_quiet_beat_are_not_heard
    another store_id is a lost store              servers: restarts_with_its_data (26 of 49 tasks are not run)
    a fresh document waits ttl + margin           servers: a_wiped_store
    open refuses under a higher or equal epoch    contract/test_queues_redis: late_requests_of_an_old_connection
    the owner outbids a fence                     servers: fences_of_a_forgotten_document (nothing runs)
    in flight goes back to the front              backlog: a_killed_worker (30 out of order)
    ... in its order                              lifecycle: there_and_back_again (16 out of order)
    the next open count                           servers: given_up (324 of 360 messages never run)
    fetch and settle are fenced                   servers: late_is_refused
    what is not started is forgotten              unit/test_gate: nothing_of_a_lost_slot_starts
    next task after the settling is confirmed     servers: cut_off_from_the_broker (#1 starts before #0 is confirmed)
    a running key stays locked when reopened      servers: connections_that_are_killed (tasks run twice)
    no start without trust                        unit/test_gate: nothing_starts_without_trust
    release when the task has ended               lifecycle: a_slot_with_a_long_task
    ... and is confirmed                          unit/test_gate: what_was_handed_out_but_came_to_nothing
    a child ends itself at the end of trust       lifecycle: a_frozen_parent
    the main process kills what holds the GIL     lifecycle: a_task_in_c_code_is_killed_from_outside
    what a task started dies with it              lifecycle: the_pool_dies_with_its_parent; a_cold_shutdown
    a start mark survives the whole worker        lifecycle: a_task_that_kills_its_whole_worker (it kills for ever)
    two changes of a counter prove a rival        lifecycle: a_name_that_lives_elsewhere
    release when the jobs have ended              verify: jobs_that_go_on (it takes the rule out itself: mutants/)
    who ended a process runs apart from then on   verify: bad_jobs_that_stay (mutants/)
    a placed key is claimed before it runs        verify: placed_keys_without_their_rules (mutants/)
    what belongs elsewhere is passed on           verify: placed_keys_without_their_rules (mutants/)
    a slot is not held for a disposition for ever servers: cut_off_from_the_broker

Two rules have no such test, because another rule covers each of them: the answer *gone* is obeyed (the view lacks the
member, too), and nothing starts in a lost slot (its entries are forgotten already).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_sticky.testing.proxy import Proxy


@pytest.fixture
def proxy() -> Iterator[Callable[[str], Proxy]]:
    """Starts proxies: `proxy(url)` → a started `Proxy` before that server."""
    proxies: list[Proxy] = []

    def start(url: str) -> Proxy:
        proxies.append(Proxy(url))
        return proxies[-1].start()

    yield start
    for made in proxies:
        made.teardown()
