"""Warnings of the worker for the user."""

from __future__ import annotations

import logging

from trainer.cluster import messages
from trainer.cluster.messages import Send


class Warnings(logging.Handler):
    """Shows the warnings of this package, its models and its datasets to the user."""

    def __init__(self, send: Send) -> None:
        super().__init__(logging.WARNING)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send one warning, unless it is about sending."""
        if record.name != messages.__name__:
            self._send(messages.Line(f"warning: {record.getMessage()}"))
