"""How many examples of each property are tried: hypothesis' own number, or in `make check` a third of it."""

import os

from hypothesis import settings

settings.register_profile("check", max_examples=30)
if os.environ.get("TORPOR_CHECK") == "1":
    settings.load_profile("check")
