from pathlib import Path

import pytest

from torpor.testing.regen import DOCUMENTS, regenerate

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_generated_document_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text() == DOCUMENTS[name](), "run: make regen"


def test_regenerating_writes_what_differs_and_nothing_else(tmp_path: Path) -> None:
    assert regenerate(tmp_path) == tuple(DOCUMENTS)
    assert regenerate(tmp_path) == ()
