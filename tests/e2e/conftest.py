"""The fixtures of ``e2e_home``, for all end-to-end tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from e2e_home import home, server  # noqa: F401 - fixtures are found by name
