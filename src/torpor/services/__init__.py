"""Use cases: decide, store the record, perform the effects."""
