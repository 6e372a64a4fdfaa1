"""The Python of the guides about several devices runs on as many ranks as it names."""

from pathlib import Path

import needs_torch  # noqa: F401
import pytest
import ranks_of_guides
import worlds
from pages import ON_RANKS


@pytest.mark.parametrize("page", ON_RANKS)
def test_the_python_of_a_guide_runs_on_its_ranks(page: str, cache_path: Path) -> None:
    worlds.run(4, ranks_of_guides.run_page, page, cache_path.parent)
