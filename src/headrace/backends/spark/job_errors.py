"""The error of a micro-batch whose Spark job failed, from the message of Spark."""

from __future__ import annotations

from headrace.errors import SessionError, WorkerLostError

_LOST_WORKER_TEXTS = ("Python worker exited unexpectedly", "ExecutorLostFailure", "Python worker failed to connect back")


def make_job_error(batch: int, message: str) -> SessionError:
    """Return WorkerLostError if a worker ended, else SessionError."""
    kind = WorkerLostError if any(text in message for text in _LOST_WORKER_TEXTS) else SessionError
    hint = "see Spark's log; the batch can be run again"
    return kind(f"batch {batch} failed on Spark", detail=_extract_cause(message), hint=hint)


def _extract_cause(message: str) -> str:
    """Return the worker's error message, without the stack trace of the JVM."""
    cause = message[message.rfind("Traceback (most recent call last)") :] if "Traceback" in message else message
    return cause.split("\n\tat ", 1)[0].strip()
