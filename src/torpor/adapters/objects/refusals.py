"""What an S3 store's refusals mean to the caller."""

from __future__ import annotations

import re

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from torpor.domain.errors import (
    InvalidArgument,
    NotFound,
    StaleRevision,
    StorageFull,
    TorporError,
    Unavailable,
    Unsupported,
)

REFUSALS = (BaseError, FileNotFoundError)
RETRY_SOON_S = 1.0
RETRY_AFTER_REPAIR_S = 60.0  # what a person must mend first

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_FULL_CODES = frozenset(
    {"InsufficientCapacity", "QuotaExceeded", "StorageFull", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"}
)


def translated(error: Exception, key: str, place: str) -> TorporError:
    """The port's error for one of ``REFUSALS``. ``details`` holds the key and what the store said: status and code."""
    text = str(error)
    status, code = _found(_STATUS, text), _found(_CODE, text)
    said = " ".join(part for part in (status, code) if part) or text.partition("\n")[0][:300]
    refusal = _of_the_store(error, place, status, code) or _of_the_call(error, key, code, said)
    if refusal is None:
        refusal = Unavailable(f"cannot reach {key} in {place}: {said}", retry_after_s=RETRY_SOON_S)
    refusal.details |= {"key": key, "said": said}
    return refusal


def _of_the_store(error: Exception, place: str, status: str, code: str) -> TorporError | None:
    """What holds for any key, and a person must mend."""
    if code == "NoSuchBucket":
        return Unavailable(
            f"cannot reach {place}: there is no such bucket; make it, or change the store's URL",
            retry_after_s=RETRY_AFTER_REPAIR_S,
        )
    if code in _FULL_CODES or status == "507":
        return StorageFull(f"cannot write to {place}: it has no room left; free some space")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in {"401", "403"}:
        return Unavailable(
            f"cannot use {place}: it refuses these credentials ({code or status}); give them the right to read, write, "
            "list and delete there",
            retry_after_s=RETRY_AFTER_REPAIR_S,
        )
    if isinstance(error, NotSupportedError) or status == "501":
        return Unsupported(f"cannot use {place}: it lacks what torpor needs of a store ({code or status})")
    return None


def _of_the_call(error: Exception, key: str, code: str, said: str) -> TorporError | None:
    if isinstance(error, AlreadyExistsError | PreconditionError) or code == "ConditionalRequestConflict":
        return StaleRevision(f"cannot write {key}: it is not in the state that was asked for ({said})")
    if isinstance(error, FileNotFoundError):
        return NotFound(f"cannot find object {key}")
    if isinstance(error, InvalidPathError):
        return InvalidArgument(f"cannot use key {key}: {said}", field="key")
    return None


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""
