"""The catalog's schema, version by version: Alembic scripts, run when a catalog is opened."""
