"""The clerk of a member: carries out the requests of its flow with the store and the name lock.

Only the thread that runs the flow uses it.
"""

from __future__ import annotations

import logging
from collections import deque

from celery_sticky.membership.flow import Flow, Prepare, Request, Surroundings
from celery_sticky.membership.lease import boottime
from celery_sticky.membership.name_lock import NameLock
from celery_sticky.membership.state import MembershipState
from celery_sticky.ownership.events import Event, StoreFailed
from celery_sticky.stores.base import Store
from celery_sticky.stores.placement import PlacementStore
from celery_sticky.stores.shared import SharedClient

logger = logging.getLogger("celery_sticky.member")

URGENT = ("heartbeat",)
"""Verbs that go before those of other members: the lease depends on them."""


class Clerk:
    """A member's routine in the thread of the members; see `platform.seat.Routine`."""

    def __init__(
        self, here: Surroundings, state: MembershipState, inbox: deque[Event], name_lock: NameLock, worker: str
    ) -> None:
        self._here, self._state, self._inbox = here, state, inbox
        self._name_lock, self._worker = name_lock, worker
        self._client: SharedClient | None = None
        self._placement_store: PlacementStore | None = None

    def open(self, client: SharedClient) -> Store:
        """See `Routine.open`."""
        self._client = client
        return client.store(self._here.keyspace)

    def turn(self) -> Flow[None]:
        """See `Routine.turn`."""
        return self._state.turn()

    def perform(self, request: Request, store: Store) -> object:
        """Carry out a request; return its answer.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        match request:
            case Prepare(incarnation):
                self._name_lock.write(incarnation)
                if self._here.observer is not None:
                    self._enlist(incarnation)
            case _:
                assert callable(request)
                return request(store)
        return None

    def failed(self) -> None:
        """See `Routine.failed`."""
        logger.exception("keyspace %s: the member met an unexpected error; it continues", self._here.keyspace)
        self._inbox.appendleft(StoreFailed(boottime()))

    def ended(self) -> None:
        """See `Routine.ended`."""
        self._here.lease.grant(self._here.keyspace, float("-inf"), self._state.membership)

    def _enlist(self, incarnation: str) -> None:
        """Enlist before others can see this worker: if it dies at once, somebody must look after its queue."""
        if self._placement_store is None:
            assert self._client is not None
            self._placement_store = self._client.placement_store(self._here.keyspace)
        self._placement_store.enlist(self._worker, incarnation)
