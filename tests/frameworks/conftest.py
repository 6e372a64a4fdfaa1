import pytest


@pytest.fixture(scope="module", autouse=True)
def _one_cache(one_cache: None) -> None:
    """For every file of this folder."""
