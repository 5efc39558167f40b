"""Store URLs, and where credentials come from."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError

from torpor.adapters.clock.virtual import VirtualClock
from torpor.adapters.objects.profile_file import profile_credentials
from torpor.adapters.objects.refusals import translated
from torpor.adapters.objects.store_place import BucketPlace, FolderPlace, parse_store_url
from torpor.apps.config import DEFAULT_CACHE_BYTES, Config
from torpor.apps.object_store import store_place
from torpor.domain.errors import InvalidArgument, StaleRevision, StorageFull, Unavailable, Unsupported

SETTING = "TORPOR_STORE_URL"


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("file:///srv/torpor%20store", FolderPlace(Path("/srv/torpor store"))),
        ("s3://bucket", BucketPlace("bucket")),
        ("s3://bucket/a/b/", BucketPlace("bucket", "a/b")),
        ("s3://bucket/a?endpoint=http://127.0.0.1:9000&region=eu-west-1",
         BucketPlace("bucket", "a", "http://127.0.0.1:9000", "eu-west-1")),
        ("s3://bucket?path_style=false", BucketPlace("bucket", path_style=False)),
    ],
)  # fmt: skip
def test_a_store_url_says_where(url, place):
    assert parse_store_url(url, setting=SETTING) == place


@pytest.mark.parametrize(
    "url",
    ["/srv/store", "file://store", "file:///", "file:relative", "gs://bucket", "s3://", "s3:///a", "s3://b", "s3://bucket/a//b",
     "s3://bucket/../a", "s3://bucket?colour=red", "s3://bucket?endpoint=here:9000", "s3://bucket?path_style=1", "s3://bucket?region",
     "s3://bucket:99999999", "http://bucket", "s3://[", "s3://bucket?endpoint=http://user:word@here"],
)  # fmt: skip
def test_a_url_that_names_no_store_is_refused_by_the_settings_name(url):
    with pytest.raises(InvalidArgument, match=r"TORPOR_STORE_URL.*s3://BUCKET") as refused:
        parse_store_url(url, setting=SETTING)
    assert refused.value.details == {"field": "store_url"}


def test_credentials_in_a_url_are_refused_and_not_repeated():
    with pytest.raises(InvalidArgument) as refused:
        parse_store_url("s3://AKIAKEY:secret@bucket/a", setting=SETTING)
    assert "secret" not in refused.value.message
    assert "AKIAKEY" not in refused.value.message


def test_store_keys_and_cache_are_the_homes_unless_said_otherwise(tmp_path):
    plain = Config.read({"TORPOR_HOME": str(tmp_path)})
    assert store_place(plain) == FolderPlace(tmp_path / "store")
    assert (plain.keys_dir, plain.cache_dir, plain.cache_bytes) == (
        tmp_path / "keys",
        tmp_path / "cache",
        DEFAULT_CACHE_BYTES,
    )
    said = Config.read(
        {
            "TORPOR_HOME": str(tmp_path),
            "TORPOR_STORE_URL": "s3://bucket/a",
            "TORPOR_KEYS_DIR": "/srv/keys",
            "TORPOR_CACHE_BYTES": "0",
        }
    )
    assert store_place(said) == BucketPlace("bucket", "a")
    assert (said.keys_dir, said.cache_bytes) == (Path("/srv/keys"), 0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("TORPOR_KEYS_DIR", "relative"), ("TORPOR_CACHE_BYTES", "-1"), ("TORPOR_CACHE_BYTES", "4 GiB"),
     ("TORPOR_CACHE_BYTES", "1.5")],
)  # fmt: skip
def test_a_setting_that_makes_no_sense_is_named(tmp_path, setting, value):
    with pytest.raises(InvalidArgument, match=setting) as refused:
        Config.read({"TORPOR_HOME": str(tmp_path), setting: value})
    assert refused.value.details["field"] == setting.removeprefix("TORPOR_").lower()


@pytest.fixture
def profiles(tmp_path):
    (tmp_path / ".aws").mkdir()
    file = tmp_path / ".aws" / "credentials"
    file.write_text(
        "[default]\naws_access_key_id = one\naws_secret_access_key = a%b\n\n"
        "[work]\naws_access_key_id=two\naws_secret_access_key=second\naws_session_token=token\n\n[empty]\n"
    )
    return file


def test_credentials_of_a_profile_are_found_where_they_usually_lie(tmp_path, profiles):
    clock, home = VirtualClock(wall_s=1_000.0), {"HOME": str(tmp_path)}
    assert profile_credentials(home, clock)() == {
        "access_key_id": "one",
        "secret_access_key": "a%b",
        "token": None,
        "expires_at": datetime.fromtimestamp(1_300.0, UTC),
    }
    work = profile_credentials({"AWS_PROFILE": "work", "AWS_SHARED_CREDENTIALS_FILE": str(profiles)}, clock)()
    assert (work["access_key_id"], work["token"]) == ("two", "token")


def test_a_profile_whose_keys_are_renewed_is_read_anew(tmp_path, profiles):
    credentials = profile_credentials({"HOME": str(tmp_path)}, VirtualClock())
    profiles.write_text(profiles.read_text().replace("one", "renewed"))
    assert credentials()["access_key_id"] == "renewed"


def test_keys_in_the_environment_win_and_no_file_leaves_the_rest_of_the_chain(tmp_path, profiles):
    assert profile_credentials({"HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": "x"}, VirtualClock()) is None
    profiles.unlink()
    assert profile_credentials({"HOME": str(tmp_path)}, VirtualClock()) is None


def test_a_profile_that_was_asked_for_must_be_there(tmp_path, profiles):
    for name in ("absent", "empty"):
        with pytest.raises(InvalidArgument, match=name):
            profile_credentials({"HOME": str(tmp_path), "AWS_PROFILE": name}, VirtualClock())
    profiles.write_text("no section = here")
    with pytest.raises(InvalidArgument, match="cannot read"):
        profile_credentials({"HOME": str(tmp_path)}, VirtualClock())


@pytest.mark.parametrize(
    ("said", "kind", "retry_after_s"),
    [
        ("status code: 503 Slow Down: <Error><Code>SlowDown</Code>", Unavailable, 1.0),
        ("status code: 500 Internal Server Error: ", Unavailable, 1.0),
        ("error sending request", Unavailable, 1.0),
        ("status code: 409 Conflict: <Error><Code>ConditionalRequestConflict</Code>", StaleRevision, None),
        ("status code: 403 Forbidden: <Error><Code>AccessDenied</Code>", Unavailable, 60.0),
        ("status code: 403 Forbidden: <Error><Code>QuotaExceeded</Code>", StorageFull, None),
        ("status code: 507 Insufficient Storage: <Error><Code>XMinioStorageFull</Code>", StorageFull, None),
        ("status code: 501 Not Implemented: <Error><Code>NotImplemented</Code>", Unsupported, None),
    ],
)
def test_a_refusal_says_what_the_caller_can_do(said, kind, retry_after_s):
    error = translated(GenericError(f"Generic S3 error: {said}"), "a/b", "s3://bucket/")
    assert type(error) is kind
    assert error.details.get("retry_after_s") == retry_after_s
    assert error.details["key"] == "a/b"
    assert kind is StaleRevision or "s3://bucket/" in error.message


def test_refused_credentials_are_said_to_be():
    error = translated(PermissionDeniedError("status code: 403 Forbidden"), "a", "s3://bucket/")
    assert "credentials" in error.message
    assert isinstance(error, Unavailable)
