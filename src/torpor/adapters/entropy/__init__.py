"""Sources of random bytes."""
