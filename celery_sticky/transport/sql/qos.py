"""What a channel has delivered. The pump settles it, and limits how much is delivered."""

from __future__ import annotations

from typing import Any

from kombu.transport import virtual


class QoS(virtual.QoS):
    """See `kombu.transport.virtual.QoS`. Any thread may acknowledge."""

    restore_at_shutdown = False

    def can_consume(self) -> bool:
        """Return True: the pump does not claim more than the prefetch count."""
        return True

    def ack(self, delivery_tag: str) -> None:
        """Delete the message."""
        super().ack(delivery_tag)
        self.channel.settle(delivery_tag, back=False)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Delete the message, or give it back to its place in its queue."""
        self._quick_ack(delivery_tag)
        self.channel.settle(delivery_tag, back=requeue)

    def restore_unacked(self) -> list[Any]:
        """Give back everything that is not acknowledged."""
        self._delivered.clear()
        self.channel.give_back()
        return []
