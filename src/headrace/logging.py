"""Logs: one place that sets up handlers and formats, as text or as one JSON object per line.

A JSON line has `time` (ISO 8601, UTC), `level`, `logger` and `message`; `batch` and `query` where they are known; and `error`,
the traceback, where there is one. headrace logs under the names "headrace" and "headrace.…", and sets up nothing when it is used
as a library: call `headrace.logging.configure`, or configure the `logging` module of Python as usual.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO

_CURRENT_BATCH: ContextVar[int | None] = ContextVar("headrace_batch", default=None)
_TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_MARK = "_headrace_handler"


class LogFormat(StrEnum):
    """The form of log lines."""

    text = "text"
    json = "json"


class LogLevel(StrEnum):
    """The least level of lines that are written."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class JsonFormatter(logging.Formatter):
    """Formats a log record as one JSON object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON; values that JSON does not have are written as text."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {
            "time": time, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage(),
        }  # fmt: skip
        labels = {"batch": _find_batch(record), "query": getattr(record, "query", None)}
        line |= {name: value for name, value in labels.items() if value is not None}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _find_batch(record: logging.LogRecord) -> int | None:
    batch: int | None = getattr(record, "batch", None)
    return _CURRENT_BATCH.get() if batch is None else batch


@contextlib.contextmanager
def label_logs(batch: int) -> Iterator[None]:
    """Let the lines that this thread logs in the block have the number of a micro-batch."""
    token = _CURRENT_BATCH.set(batch)
    try:
        yield
    finally:
        _CURRENT_BATCH.reset(token)


class _StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Writes to what standard error is when a line is logged, which may be redirected for a while."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None:  # noqa: ARG002
        raise AttributeError("standard error is looked up for every line")


def configure(
    form: LogFormat | str = LogFormat.text, level: LogLevel | str = LogLevel.warning, stream: TextIO | None = None
) -> None:
    """Write log lines of this process to `stream`, standard error by default. A further call replaces the earlier set-up.

    `level` is that of headrace; other libraries write warnings and errors.
    """
    handler = _StandardErrorHandler() if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if LogFormat(form) is LogFormat.json else logging.Formatter(_TEXT_FORMAT))
    setattr(handler, _MARK, True)
    root = logging.getLogger()
    for earlier in [known for known in root.handlers if getattr(known, _MARK, False)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    logging.getLogger("headrace").setLevel(LogLevel(level).upper())
