"""One kind of I/O each, with its errors translated to the domain's."""
