import sys

import pytest

from mucudnn.errors import MucudnnError


def test_without_pytorch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("mucudnn.torch")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"pip install .*\[torch\]'") as caught:
        import mucudnn.torch  # noqa: F401 (the import is the test)
    assert isinstance(caught.value, MucudnnError)
