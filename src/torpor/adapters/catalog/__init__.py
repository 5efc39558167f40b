"""Catalogs of session and template records."""
