"""Engines: one folder each; they do not know each other."""
