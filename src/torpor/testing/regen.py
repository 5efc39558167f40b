"""Documents that are generated from the code: ``python -m torpor.testing.regen``, from the root of the repository.

One function per document; a test compares each with the file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from torpor.domain import lifecycle


def lifecycle_diagram() -> str:
    """docs/lifecycle.mmd: the table of what a session may do."""
    return lifecycle.diagram()


DOCUMENTS: Mapping[str, Callable[[], str]] = {
    "docs/lifecycle.mmd": lifecycle_diagram,
}


def regenerate(root: Path) -> tuple[str, ...]:
    """Write every document below ``root``; the names of those that changed."""
    changed = []
    for name, generate in DOCUMENTS.items():
        path, text = root / name, generate()
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            changed.append(name)
    return tuple(changed)


if __name__ == "__main__":
    sys.stdout.writelines(f"regenerated {name}\n" for name in regenerate(Path.cwd()))
