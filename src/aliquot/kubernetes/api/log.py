"""Logging on a cluster: one JSON object per line, on standard error."""

from __future__ import annotations

import logging
import sys

import structlog


def set_up_log(level: int = logging.INFO) -> None:
    """Configure logging for this process."""
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
