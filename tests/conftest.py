import pytest
from hypothesis import settings

from mucudnn import _native

# How long an example takes depends on the machine, not on whether the property holds.
settings.register_profile("mucudnn", deadline=None)
settings.load_profile("mucudnn")


@pytest.fixture(scope="session")
def engine() -> _native.Engine:
    """The host engine on one thread."""
    return _native.Engine(_native.host_library(), threads=1)
