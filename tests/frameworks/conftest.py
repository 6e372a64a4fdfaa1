from collections.abc import Iterator

import pytest

from mucudnn import dispatch


@pytest.fixture(scope="package", autouse=True)
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is measured for one test serves the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUCUDNN_CACHE", str(tmp_path_factory.mktemp("cache") / "cache.sqlite"))
        patch.delenv("MUCUDNN_WORKSPACE_LIMIT", raising=False)
        patch.setattr(dispatch, "_prepared", {})
        yield
