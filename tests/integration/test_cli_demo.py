"""The demo trains a network in PyTorch, and says what to install where it is missing."""

import sys

import pytest
from command_line import Capture, failure_of

from mucudnn.extras import install_command


def test_without_pytorch_the_demo_says_what_to_install(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("mucudnn.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, line = failure_of(capsys, "demo")
    assert code == 1
    assert install_command("torch") in line
