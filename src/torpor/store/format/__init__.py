"""Pure bytes to values and back: chunker, envelope, pack, manifest."""
