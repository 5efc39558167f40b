"""What the server logs: one line per event on stderr, its own and those of its libraries."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs() -> None:
    """Once, before anything logs. Colours only on a terminal."""
    steps: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(),
        pad_event_to=0,
        exception_formatter=structlog.dev.plain_traceback,  # the other one prints local variables: code, output, keys
    )
    structlog.configure(
        processors=[*steps, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=steps,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    for chatty in ("alembic", "uvicorn.error", "httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
