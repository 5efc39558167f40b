"""Every error that may cross a port or reach a client, on one page.

The caller's next step decides the class, and nothing else::

    TorporError
    ├── InvalidArgument      change the request; details.field names what was wrong
    ├── Unauthenticated      send a key
    ├── PermissionDenied     use a key that may do it
    ├── NotFound             change the request
    ├── Conflict             wait for, or change, the session
    ├── StaleRevision        re-read and decide again (a lost compare-and-swap)
    ├── Unsupported          choose another engine, build or node
    ├── QuotaExceeded        free something or ask for more
    ├── StorageFull          free disk space; nothing was lost, the session goes on
    ├── Unavailable          repeat the same call (retry_after_s)
    ├── DeadlineExceeded     the time given was too short; the session's status says what holds
    ├── Corrupt              stop: stored bytes are not what was written; never retried
    ├── KeyDestroyed         stop: the key was shredded on purpose
    ├── GuestError           the guest agent refused or died; the session's status says what holds
    └── EngineError          report; the session's status says what holds

``code`` is the stable wire name. Messages are lower case, "cannot X: why", with the values and the remedy.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TorporError(Exception):
    """Base of all errors that torpor reports. ``details`` is JSON-serialisable."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, /, **details: Any) -> None:  # noqa: ANN401 - details are free-form JSON
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = details


class InvalidArgument(TorporError):
    """The request is wrong in itself; ``details["field"]`` names the part."""

    code = "invalid_argument"
    http_status = 422


class Unauthenticated(TorporError):
    """No key, or a key that is not known."""

    code = "unauthenticated"
    http_status = 401


class PermissionDenied(TorporError):
    """The key is known, and may not do this; ``details["session"]`` is the one that a session's token may use."""

    code = "permission_denied"
    http_status = 403


class NotFound(TorporError):
    """Nothing has that name or id for this tenant."""

    code = "not_found"
    http_status = 404


class Conflict(TorporError):
    """The session's status does not allow it; ``details["reason"]`` is the lifecycle's reason string."""

    code = "conflict"
    http_status = 409


class StaleRevision(TorporError):
    """A compare-and-swap was lost: somebody else changed the record first."""

    code = "aborted"
    http_status = 409


class Unsupported(TorporError):
    """This engine, build or host cannot do it; ``details`` names what differs or lacks."""

    code = "unsupported"
    http_status = 422  # the request asks for it: no 5xx, which says that the server failed


class QuotaExceeded(TorporError):
    """A stated limit was reached."""

    code = "quota_exceeded"
    http_status = 429


class StorageFull(TorporError):
    """A disk or store has no room left; what existed before still exists."""

    code = "storage_full"
    http_status = 507


class Unavailable(TorporError):
    """The same call may work later: ``details["retry_after_s"]``."""

    code = "unavailable"
    http_status = 503


class DeadlineExceeded(TorporError):
    """The time the caller gave has passed."""

    code = "deadline_exceeded"
    http_status = 504


class Corrupt(TorporError):
    """Stored bytes fail authentication or do not parse. Never wrong data, never retried."""

    code = "data_loss"
    http_status = 500


class KeyDestroyed(TorporError):
    """The key of this data was destroyed; the data is unreadable for good."""

    code = "key_destroyed"
    http_status = 410


class GuestError(TorporError):
    """The guest agent refused, answered wrongly or went away."""

    code = "guest_error"
    http_status = 502


class EngineError(TorporError):
    """The engine failed; ``details`` may hold argv, exit_code and log_tail."""

    code = "engine_error"
    http_status = 500


def error_for(code: str, message: str, /, **details: Any) -> TorporError:  # noqa: ANN401 - details are free-form JSON
    """The error whose wire name is ``code``; a plain TorporError for a name that this version does not know."""
    classes = {kind.code: kind for kind in TorporError.__subclasses__()}
    return classes.get(code, TorporError)(message, **details)
