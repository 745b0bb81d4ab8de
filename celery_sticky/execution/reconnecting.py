"""Makes Celery's consumer reconnect when the broker refuses it temporarily, as it does when a connection breaks.

Celery treats a refusal as a programming error (`channel_errors`, celery/worker/consumer/consumer.py, 5.5 to 5.7): its
worker exits when it connects to a full server, or when a server is demoted while connected. The setting
`broker_channel_error_retry` makes it retry after every such error, including a wrong configuration.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from celery_sticky.drivers import Failures

logger = logging.getLogger("celery_sticky")

PAUSE = 1.0
"""Seconds between attempts."""


def connect_again_when_refused(consumer: Any, failures: Failures | None) -> None:
    """Make the consumer retry after what its broker's driver calls temporary; after other errors it fails as before."""
    if failures is None or consumer.app.conf.broker_channel_error_retry:
        return  # nothing is known about the errors, or Celery already retries after any error
    stock = consumer.connection_errors
    consumer.connection_errors = (*stock, *consumer.channel_errors)
    for name in ("on_connection_error_before_connected", "on_connection_error_after_connected"):
        setattr(consumer, name, _told_apart(getattr(consumer, name), stock, failures))


def _told_apart(
    recover: Callable[[Exception], None], stock: tuple[type[Exception], ...], failures: Failures
) -> Callable[[Exception], None]:
    def on_error(error: Exception) -> None:
        if not isinstance(error, stock):
            if not failures.passes(error):
                raise error
            logger.warning(
                "sticky: the broker refuses Celery's own connection: %s. Connecting again in %.0f s",
                failures.describe(error),
                PAUSE,
            )
            time.sleep(PAUSE)
        recover(error)

    return on_error
