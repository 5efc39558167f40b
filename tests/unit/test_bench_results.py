"""The one form of every bench's results, and the bucket that cold resumes read from."""

from __future__ import annotations

import dataclasses

import pytest

from torpor.adapters.objects.bucket import BucketObjects
from torpor.adapters.objects.store_place import parse_store_url
from torpor.apps.bench.bucket import CREDENTIALS, bucket_of
from torpor.apps.bench.report import Bound, as_report, percentile, result
from torpor.domain.errors import Corrupt, NotFound, StaleRevision

FIFTY = [float(number) for number in range(1, 51)]


def test_percentiles_are_the_nearest_rank():
    assert [percentile(FIFTY, percent) for percent in (1, 50, 95, 99, 100)] == [1, 25, 48, 50, 50]


@pytest.mark.parametrize(
    ("bound", "holds"),
    [
        (Bound(25), True),
        (Bound(24.9), False),
        (Bound(48, percent=95), True),
        (Bound(47, percent=95), False),
        (Bound(49, percent=100), False),
        (Bound(25, at_least=True), True),
        (Bound(26, at_least=True), False),
    ],
)
def test_a_bound_is_of_one_percentile_from_above_or_below(bound, holds):
    assert result("x", FIFTY, unit="ms", rule="", bound=bound).holds is holds


def test_what_the_bound_is_on_names_a_figure_of_the_result():
    for percent in (50, 95, 99, 100):
        each = result("x", FIFTY, unit="ms", rule="", bound=Bound(1, percent=percent))
        assert dataclasses.asdict(each)[each.bound_on] == percentile(FIFTY, percent)


def test_a_report_holds_results_with_their_ratio_to_the_raw_engine_and_the_machine():
    report = as_report([result("x", [4.0], unit="ms", rule="", raw=[2.0])], "runsc-1")
    assert (report["results"][0]["ratio"], report["results"][0]["holds"]) == (2.0, True)
    assert {"engine", "kernel", "cores", "cpu"} <= report["machine"].keys()


async def test_the_bucket_speaks_as_much_of_the_protocol_as_the_store_needs(tmp_path, monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    async with bucket_of(tmp_path / "store") as bucket:
        place = parse_store_url(bucket.variables["TORPOR_STORE_URL"], setting="TORPOR_STORE_URL")
        objects = BucketObjects(place)
        await objects.put("a/b/one", b"0123456789")
        head = await objects.put_if("a/head", b"first", etag=None)
        with pytest.raises(StaleRevision):
            await objects.put_if("a/head", b"second", etag=None)
        await objects.put_if("a/head", b"second", etag=head.etag)
        assert await objects.get("a/head") == b"second"
        assert await objects.get_range("a/b/one", offset=3, size=4) == b"3456"
        with pytest.raises(Corrupt):
            await objects.get_range("a/b/one", offset=8, size=4)
        assert [(info.key, info.size_bytes) async for info in objects.list("a/")] == [("a/b/one", 10), ("a/head", 6)]
        assert (await objects.head("a/b/one")).size_bytes == 10
        await objects.delete("a/b/one")
        with pytest.raises(NotFound):
            await objects.get("a/b/one")
        assert await bucket.given_bytes() >= 10
