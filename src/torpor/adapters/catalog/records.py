"""Records ⇄ rows: the fields that queries name as columns, all others in one JSON document. Pure.

``due_at_s`` is derived, for a query: reading takes no notice of it.

Readers take what they know: fields that a newer version added are passed over, absent ones get their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from torpor.domain.clocks import next_due_at_s
from torpor.domain.errors import Corrupt, InvalidArgument
from torpor.domain.session import Session
from torpor.ports.catalog import TemplateRecord

Row = dict[str, Any]
Record = TypeVar("Record")

SESSION_COLUMNS = (
    "tenant",
    "id",
    "name",
    "status",
    "template",
    "template_digest",
    "node",
    "revision",
    "generation",
    "operation",
    "created_at_s",
)
TEMPLATE_COLUMNS = ("tenant", "name", "digest", "created_at_s")

_SESSIONS = TypeAdapter(Session)
_TEMPLATES = TypeAdapter(TemplateRecord)


def row_for_session(session: Session) -> Row:
    """The row that ``session_for_row`` reads back equal. Raises: InvalidArgument for what JSON cannot hold."""
    return _row(_SESSIONS, session, SESSION_COLUMNS) | {"due_at_s": next_due_at_s(session)}


def session_for_row(row: Mapping[str, Any]) -> Session:
    """The session in a row. Raises: Corrupt."""
    return _record(_SESSIONS, row, SESSION_COLUMNS)


def row_for_template(template: TemplateRecord) -> Row:
    """The row that ``template_for_row`` reads back equal. Raises: InvalidArgument for what JSON cannot hold."""
    return _row(_TEMPLATES, template, TEMPLATE_COLUMNS)


def template_for_row(row: Mapping[str, Any]) -> TemplateRecord:
    """The template in a row. Raises: Corrupt."""
    return _record(_TEMPLATES, row, TEMPLATE_COLUMNS)


def _row(adapter: TypeAdapter[Record], record: Record, columns: tuple[str, ...]) -> Row:
    try:
        fields = adapter.dump_python(record, mode="json", warnings="error")  # of a field that could not be read back
        columned = {column: fields.pop(column) for column in columns}
        return {**columned, "document": json.dumps(fields, allow_nan=False, separators=(",", ":"), sort_keys=True)}
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidArgument(f"cannot store the record: JSON cannot hold it: {error}", field="record") from error


def _record(adapter: TypeAdapter[Record], row: Mapping[str, Any], columns: tuple[str, ...]) -> Record:
    try:
        fields = json.loads(row["document"])
        return adapter.validate_python({**fields, **{column: row[column] for column in columns}})
    except (ValidationError, ValueError, TypeError) as error:
        raise Corrupt(
            f"cannot read a record of the catalog: {error}", row={name: row[name] for name in columns}
        ) from error
