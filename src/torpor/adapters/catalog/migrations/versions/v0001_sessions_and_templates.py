"""Sessions and templates."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make both tables."""
    op.create_table(
        "sessions",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("template", sa.Text, nullable=False),
        sa.Column("template_digest", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("operation", sa.Integer, nullable=False),
        sa.Column("created_at_s", sa.Double, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    # A deleted session gives its name back.
    op.create_index(
        "sessions_by_name", "sessions", ["tenant", "name"], unique=True, sqlite_where=sa.text("status <> 'deleted'")
    )
    op.create_index("sessions_in_order", "sessions", ["tenant", "created_at_s", "id"])
    op.create_index("sessions_by_status", "sessions", ["status"])
    # ``serial`` grows with every put: the newest of a name has the highest.
    op.create_table(
        "templates",
        sa.Column("serial", sa.Integer, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("created_at_s", sa.Double, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.UniqueConstraint("tenant", "name", "digest"),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    """Drop both tables and all that is in them."""
    op.drop_table("templates")
    op.drop_table("sessions")
