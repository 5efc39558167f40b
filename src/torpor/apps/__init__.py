"""Composition roots: the only rooms that choose adapters."""
