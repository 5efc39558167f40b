"""The gVisor engine: checkpoint and restore by runsc."""
