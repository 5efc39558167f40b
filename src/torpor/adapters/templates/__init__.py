"""Root filesystems of templates."""
