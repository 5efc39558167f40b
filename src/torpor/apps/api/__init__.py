"""The HTTP API under ``/v1``: maps wire to services and back, decides nothing."""
