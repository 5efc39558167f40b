"""Key stores."""
