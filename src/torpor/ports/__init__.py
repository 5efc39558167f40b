"""Protocols and their value types; nothing here has a body that acts."""
