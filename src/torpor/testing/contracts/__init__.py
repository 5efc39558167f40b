"""One contract suite per port; every adapter runs it."""
