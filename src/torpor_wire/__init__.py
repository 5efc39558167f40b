"""The guest protocol: values and sans-I/O framing. Standard library only."""
