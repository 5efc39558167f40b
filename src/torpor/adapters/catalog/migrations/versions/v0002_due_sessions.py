"""When a clock of a session ends next, so that those that are due are found without reading all."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Records of before are due at once: whoever looks at them writes them anew, with their instant."""
    op.add_column("sessions", sa.Column("due_at_s", sa.Double))
    op.execute(sa.text("UPDATE sessions SET due_at_s = 0 WHERE status <> 'deleted'"))
    op.create_index("sessions_by_due", "sessions", ["due_at_s"], sqlite_where=sa.text("due_at_s IS NOT NULL"))


def downgrade() -> None:
    """Forget the instants; they are derived from the records."""
    op.drop_index("sessions_by_due", "sessions")
    op.drop_column("sessions", "due_at_s")
