"""Sizes and durations as people write them: ``512MiB``, ``2GB``, ``30s``, ``10m``, ``never``. Pure."""

from __future__ import annotations

import re

from torpor.domain.errors import InvalidArgument

_FORM = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_BYTES = (
    {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
    | {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
    | {"kB": 1000, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
)
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
NEVER = "never"


def size_bytes(text: str, *, field: str) -> int:
    """``512MiB`` (powers of 1024), ``512MB`` (powers of 1000), ``512M`` (as MiB), or bytes. Raises: InvalidArgument."""
    amount = _amount(text, _BYTES)
    if amount is None or amount < 1:
        raise InvalidArgument(f"cannot use {text!r} as {field}: write a size, for instance 512MiB or 2GB", field=field)
    return round(amount)


def duration_s(text: str, *, field: str) -> float:
    """``30s``, ``10m``, ``2h``, ``7d``, ``250ms``, or seconds. Raises: InvalidArgument."""
    amount = _amount(text, _SECONDS)
    if amount is None or amount <= 0:
        raise InvalidArgument(f"cannot use {text!r} as {field}: write a duration, for instance 30s or 10m", field=field)
    return amount


def duration_or_never_s(text: str, *, field: str) -> float | None:
    """As ``duration_s``; None for ``never``."""
    if text == NEVER:
        return None
    try:
        return duration_s(text, field=field)
    except InvalidArgument as error:
        raise InvalidArgument(f"{error.message}, or {NEVER}", field=field) from error


def _amount(text: str, units: dict[str, int] | dict[str, float]) -> float | None:
    form = _FORM.fullmatch(text.strip())
    if form is None or form[2] not in units:
        return None
    return float(form[1]) * units[form[2]]
