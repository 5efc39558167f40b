"""The tables as queries see them, and the way an older database gets there."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from torpor.domain.errors import Unsupported

MIGRATIONS = Path(__file__).parent / "migrations"

_METADATA = sa.MetaData()

SESSIONS = sa.Table(
    "sessions",
    _METADATA,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text),
    sa.Column("status", sa.Text),
    sa.Column("template", sa.Text),
    sa.Column("template_digest", sa.Text),
    sa.Column("node", sa.Text),
    sa.Column("revision", sa.Integer),
    sa.Column("generation", sa.Integer),
    sa.Column("operation", sa.Integer),
    sa.Column("created_at_s", sa.Double),
    sa.Column("due_at_s", sa.Double),
    sa.Column("document", sa.Text),
)

TEMPLATES = sa.Table(
    "templates",
    _METADATA,
    sa.Column("serial", sa.Integer, primary_key=True),
    sa.Column("tenant", sa.Text),
    sa.Column("name", sa.Text),
    sa.Column("digest", sa.Text),
    sa.Column("created_at_s", sa.Double),
    sa.Column("document", sa.Text),
)


def upgrade_schema(connection: sa.Connection, *, path: Path) -> None:
    """Bring the database to this version's schema, inside the caller's transaction. Idempotent.

    Raises: Unsupported if a newer torpor or something else made it; then nothing was changed.
    """
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    newest = script.get_current_head()
    current = MigrationContext.configure(connection).get_current_revision()
    if current is None and sa.inspect(connection).get_table_names():
        raise Unsupported(
            f"cannot open catalog {path}: the database belongs to another program; choose another path", path=str(path)
        )
    if current is not None and current not in {version.revision for version in script.walk_revisions()}:
        raise Unsupported(
            f"cannot open catalog {path}: its schema {current} was made by a newer torpor, this one knows up to "
            f"{newest}; run that version again, or restore the backup made before the upgrade",
            path=str(path),
            schema=current,
            newest_known=newest,
        )
    if current != newest:
        command.upgrade(config, "head")
