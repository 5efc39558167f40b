"""torpor: stateful sandbox sessions for AI agents that survive their waits."""

__version__ = "0.1.0"
