"""The demo shows figures of this machine and the Python that does the same."""

import re
import sys

import pytest
from command_line import Capture, output_of

from mucudnn._native import Timing
from mucudnn.cli import demo_convolutions as convolutions
from mucudnn.listener import Listener

pytestmark = pytest.mark.usefixtures("cache_path")
BAR = r" +[█▏▎▍▌▋▊▉]+ +[\d.]+ ms"


def test_without_pytorch_the_demo_runs_convolutions_of_arrays(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolutions, "_CONVOLUTIONS", (("small", (4, 8, 9, 9), (8, 8, 3, 3), 1),))
    monkeypatch.setitem(sys.modules, "torch", None)
    busy = "Other programs kept the processors busy"
    for disturbed in (True, False):
        monkeypatch.setattr(convolutions, "estimate", lambda *_, is_busy=disturbed: Timing(1, 1, 1, is_busy))
        text = output_of(capsys, ["demo"])
        assert (busy in text) == disturbed
    assert re.search(rf"  no workspace{BAR}\n  8MiB {BAR}  [\d.]+×\n", text)
    assert "convolution_forward(x, w, padding=1, workspace=" in text
    assert "pip install" in text


def test_the_convolutions_of_the_demo_agree() -> None:
    for times in convolutions.run_convolutions(Listener()):
        assert min(times.without, times.within) > 0
        assert times.difference < 1e-4
