"""The faults: one class each, in one file for each family."""

from __future__ import annotations

from collections.abc import Mapping

from celery_sticky.cli.verify.faults.base import Fault
from celery_sticky.cli.verify.faults.broker import (
    BrokerFreeze,
    BrokerFull,
    BrokerRestart,
    BrokerRollback,
    Failover,
    WrongType,
)
from celery_sticky.cli.verify.faults.connections import Deadlock, Disconnect, Lock, OpenTransaction, ReadOnly
from celery_sticky.cli.verify.faults.cut_off import Clock, LoopHang, Partition, Stop
from celery_sticky.cli.verify.faults.deaths import Cascade, ChildKill, Kill
from celery_sticky.cli.verify.faults.deployments import Join, Leave, Rolling, Surge, Term
from celery_sticky.cli.verify.faults.mixed_in import Eta, Raise, Retry
from celery_sticky.cli.verify.faults.orders import Big, Burst, Malformed, Oom, Slow
from celery_sticky.cli.verify.faults.stores import BackendAway, StoreRollback

FAULTS: tuple[type[Fault], ...] = (
    *(Kill, Cascade, Stop, ChildKill, Partition),
    *(BrokerRestart, BrokerFreeze, Clock, StoreRollback, BrokerRollback, BackendAway, Failover, BrokerFull, WrongType),
    *(Disconnect, Lock, ReadOnly, Deadlock, OpenTransaction),
    *(Term, Join, Leave, Rolling, Surge, LoopHang),
    *(Oom, Burst, Slow, Big, Malformed),
    *(Eta, Retry, Raise),
)
"""Every fault. The plan of a seed depends on their order."""

BY_NAME: Mapping[str, type[Fault]] = {fault.name: fault for fault in FAULTS}
