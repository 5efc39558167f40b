"""The host itself: mounts and files that are no engine's."""
