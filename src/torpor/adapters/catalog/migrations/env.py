"""What Alembic runs: the pending versions, on the connection (and in the transaction) of ``upgrade_schema``."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
