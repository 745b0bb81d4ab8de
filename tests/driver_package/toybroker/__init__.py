"""A toy broker and store in the memory of one process, and its driver for celery-sticky."""

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES["toy"] = "toybroker.transport:Transport"
