"""What the programs on a cluster log: one line of JSON each, on standard error."""

from __future__ import annotations

import logging
import sys

import structlog


def set_up_log(level: int = logging.INFO) -> None:
    """Log from now on so."""
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
