"""``python -m torpor.apps.cli``: how a detached server starts itself."""

import sys

from torpor.apps.cli.main import main

sys.exit(main())
