"""The slot queues of the toy broker. A real driver implements `celery_sticky.queues.base.SlotQueues` here."""

from celery_sticky.queues.memory import MemoryQueues
from toybroker.driver import GUARANTEES


class ToyQueues(MemoryQueues):
    """Those of the memory broker, without the promise that a message can move to another queue."""

    guarantees = GUARANTEES
