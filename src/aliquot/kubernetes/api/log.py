"""Logging on a cluster: one JSON object per line, on standard error."""

from __future__ import annotations

import logging
import sys

import structlog


class _Forward(logging.Handler):
    """Gives structlog what modules log that machines without a cluster use too."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger(record.name).log(record.levelno, record.getMessage())


def set_up_log(level: int = logging.INFO) -> None:
    """Configure logging for this process."""
    plain = logging.getLogger("aliquot")
    plain.handlers, plain.propagate = [_Forward()], False
    plain.setLevel(level)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
