"""Books of answers to requests with an idempotency key."""

from torpor.adapters.answers.sqlite import SqliteAnswers

__all__ = ["SqliteAnswers"]
