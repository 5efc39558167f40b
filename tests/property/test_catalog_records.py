"""Records ⇄ rows."""

import contextlib
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torpor.adapters.catalog.pages import Place, cursor_for, parse_cursor
from torpor.adapters.catalog.records import (
    SESSION_COLUMNS,
    row_for_session,
    row_for_template,
    session_for_row,
    template_for_row,
)
from torpor.domain.clocks import next_due_at_s
from torpor.domain.errors import Corrupt, InvalidArgument
from torpor.domain.session import Durability, Limits, Persistence, Session, SnapshotRecord, Status
from torpor.ports.catalog import TemplateRecord
from torpor.testing.contracts.catalog import full_session, session

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, 2**60)
WORDS = st.dictionaries(st.text(), st.text(), max_size=3)
TIMINGS = st.dictionaries(st.text(), FLOATS, max_size=3)
REFS = st.dictionaries(st.text(), st.text() | COUNTS, max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | COUNTS | FLOATS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)

SNAPSHOTS = st.builds(
    SnapshotRecord,
    ref=REFS,
    sequence=COUNTS,
    instant_s=FLOATS,
    image_bytes=COUNTS,
    new_bytes=COUNTS,
    timings_ms=TIMINGS,
)
SESSIONS = st.builds(
    Session,
    id=st.text(),
    tenant=st.text(),
    template=st.text(),
    template_digest=st.text(),
    created_at_s=FLOATS,
    name=st.none() | st.text(),
    status=st.sampled_from(Status),
    persistence=st.sampled_from(Persistence),
    limits=st.builds(Limits, cpus=FLOATS, memory_bytes=COUNTS, disk_bytes=COUNTS, pids_max=COUNTS),
    metadata=WORDS,
    env=WORDS,
    revision=COUNTS,
    generation=COUNTS,
    operation=COUNTS,
    wrapped_key=st.text(),
    node=st.text(),
    instance=st.none() | st.text(),
    snapshot=st.none() | SNAPSHOTS,
    durability=st.none() | st.sampled_from(Durability),
    paused_at_s=st.none() | FLOATS,
    running_since_s=st.none() | FLOATS,
    ordered_at_s=FLOATS,
    compute_s=FLOATS,
    cpu_s=FLOATS,
    resumes_count=COUNTS,
    last_error=st.none() | st.text(),
    last_error_code=st.none() | st.text(),
    last_timings_ms=TIMINGS,
)
TEMPLATES = st.builds(
    TemplateRecord,
    tenant=st.text(),
    name=st.text(),
    digest=st.text(),
    created_at_s=FLOATS,
    wrapped_key=st.text(),
    golden=REFS,
    engine_build=st.text(),
    image_bytes=COUNTS,
    shape=st.dictionaries(st.text(), JSON, max_size=3),
)


@settings(max_examples=settings.default.max_examples // 2)  # 28 fields each: wide, so few are enough
@given(SESSIONS)
def test_every_session_comes_back_equal(record: Session) -> None:
    assert session_for_row(row_for_session(record)) == record


@given(TEMPLATES)
def test_every_template_comes_back_equal(record: TemplateRecord) -> None:
    assert template_for_row(row_for_template(record)) == record


@settings(max_examples=settings.default.max_examples // 2)  # 28 fields each: wide, so few are enough
@given(SESSIONS)
def test_a_field_stands_in_a_column_or_in_the_document_and_never_in_both(record: Session) -> None:
    row = row_for_session(record)
    document = json.loads(row.pop("document"))
    assert row.pop("due_at_s") == next_due_at_s(record)
    assert set(row) == set(SESSION_COLUMNS)
    assert set(row) | set(document) == {field.name for field in dataclasses.fields(Session)}
    assert not set(row) & set(document)


@given(st.builds(Place, FLOATS, st.text()))
def test_every_cursor_comes_back_equal(place: Place) -> None:
    assert parse_cursor(cursor_for(place)) == place


@given(st.text())
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidArgument):
        assert isinstance(parse_cursor(text), Place)


def altered(change: dict[str, Any]) -> dict[str, Any]:
    row = row_for_session(full_session())
    return row | {"document": json.dumps(json.loads(row["document"]) | change)}


def test_the_full_session_of_the_contract_leaves_nothing_at_its_default() -> None:
    at_default = [
        field.name
        for field in dataclasses.fields(Session)
        if getattr(full_session(), field.name) == getattr(session(), field.name)
    ]
    # The first three are what both are built with; the catalog counts revisions.
    assert at_default == ["tenant", "template", "template_digest", "revision"]


def test_fields_of_a_newer_version_are_passed_over() -> None:
    row = altered({"retention_s": 5, "limits": {"cpus": 0.5, "gpus": 1}})
    read = session_for_row(row)
    assert read.limits == Limits(cpus=0.5)
    assert dataclasses.replace(read, limits=full_session().limits) == full_session()


def test_fields_that_an_older_version_did_not_have_get_their_defaults() -> None:
    assert session_for_row(row_for_session(session()) | {"document": "{}"}) == session()


@pytest.mark.parametrize(
    "row",
    [
        altered({"persistence": "eternal"}),
        altered({"snapshot": {"sequence": 1}}),
        altered({"compute_s": "long"}),
        altered({}) | {"status": "sleeping"},
        altered({}) | {"document": "{"},
        altered({}) | {"document": "[]"},
        altered({}) | {"document": None},
    ],
)
def test_a_row_that_does_not_parse_is_corrupt(row: dict[str, Any]) -> None:
    with pytest.raises(Corrupt, match="cannot read a record"):
        session_for_row(row)


@pytest.mark.parametrize("record", [session(compute_s=float("nan")), session(cpu_s=float("inf"))])
def test_what_json_cannot_hold_is_refused(record: Session) -> None:
    with pytest.raises(InvalidArgument):
        row_for_session(record)
