"""Where objects lie, as its URL says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from torpor.adapters.objects.object_key import checked_key
from torpor.domain.errors import InvalidArgument

REGION_DEFAULT = "us-east-1"
FORMS = "file:///FOLDER, or s3://BUCKET/PREFIX?endpoint=URL&region=NAME&path_style=true|false (query optional)"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_S3_OPTIONS = frozenset({"endpoint", "region", "path_style"})


@dataclass(frozen=True, slots=True)
class FolderPlace:
    """A folder of this machine."""

    path: Path


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A bucket of S3 or of a store that speaks like it, and what all keys in it start with (may be empty).

    ``endpoint`` None: Amazon's own of the region. ``region`` None: what the environment says, else us-east-1.
    ``path_style``: the bucket is in the path of requests, not in the host's name.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool = True

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}" + (f" at {self.endpoint}" if self.endpoint else "")


StorePlace = FolderPlace | BucketPlace


def parse_store_url(url: str, *, setting: str) -> StorePlace:
    """The place that ``url`` names. Raises: InvalidArgument that names ``setting`` (field ``store_url``)."""
    try:
        parts = urlsplit(url)
        user_info = parts.username or parts.password
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError:
        raise _refused("it", setting, "it cannot be parsed") from None
    if user_info:
        raise _refused("it", setting, "a URL shows in logs, so credentials do not belong in it")
    match parts.scheme:
        case "file":
            return _folder(parts, url, setting)
        case "s3":
            return _bucket(parts, options, url, setting)
        case other:
            raise _refused(url, setting, f"its scheme is {other!r}")


def _folder(parts: SplitResult, url: str, setting: str) -> FolderPlace:
    path = Path(unquote(parts.path))
    if parts.netloc or parts.query or not parts.path.startswith("/") or path == Path("/"):
        raise _refused(url, setting, "it needs an absolute folder and nothing else")
    return FolderPlace(path)


def _bucket(parts: SplitResult, options: dict[str, str], url: str, setting: str) -> BucketPlace:
    if not _BUCKET.fullmatch(parts.netloc):
        raise _refused(url, setting, f"{parts.netloc!r} is no name of a bucket")
    if unknown := sorted(options.keys() - _S3_OPTIONS):
        raise _refused(url, setting, f"it has no option {', '.join(unknown)}")
    prefix = parts.path.strip("/")
    if prefix:
        try:
            checked_key(prefix)
        except InvalidArgument as error:
            raise _refused(url, setting, error.message) from None
    endpoint = options.get("endpoint")
    if endpoint is not None:
        at = urlsplit(endpoint)
        if at.scheme not in {"http", "https"} or not at.hostname or at.username or at.password:
            raise _refused(url, setting, f"its endpoint {endpoint!r} is not http(s)://HOST[:PORT]")
    style = options.get("path_style", "true")
    if style not in {"true", "false"}:
        raise _refused(url, setting, f"path_style is {style!r}, not true or false")
    return BucketPlace(parts.netloc, prefix, endpoint, options.get("region"), style == "true")


def _refused(url: str, setting: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"cannot use {url} as {setting}: {why}; write {FORMS}", field="store_url")
