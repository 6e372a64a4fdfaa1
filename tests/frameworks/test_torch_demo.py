"""The demo trains a network in four ways, whose gradients agree."""

import re

import pytest
from command_line import Capture, output_of
from needs_torch import torch

from mucudnn._native import RunTime
from mucudnn.cli import demo_training as training
from mucudnn.listener import Listener

pytestmark = pytest.mark.usefixtures("cache_path")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the demo take seconds: small volumes, and a compiler that generates no code."""
    compile_ = torch.compile
    monkeypatch.setattr(training, "SHAPE", (1, 1, 8, 8, 8))
    monkeypatch.setattr(torch, "compile", lambda model: compile_(model, backend="aot_eager"))


def test_all_ways_compute_the_same_gradients() -> None:
    result = training.run_training(Listener())
    assert [way.name for way in result.ways] == ["stock", "compiled", "converted", "converted, compiled"]
    assert all(way.seconds for way in result.ways)
    assert 0 < result.difference < 1e-4


def test_the_reason_of_a_failure_is_more_than_the_name_of_a_backend() -> None:
    error = RuntimeError(
        "backend='inductor' raised:\nImportError: libfour.so: cannot open\n\nSet TORCHDYNAMO_VERBOSE=1"
    )
    assert training._reason(error) == "ImportError: libfour.so: cannot open"
    assert training._reason(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize("is_busy", [True, False])
def test_the_demo_says_that_other_programs_disturbed_its_steps(
    is_busy: bool, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_ms = 10.0 if is_busy else 39.0  # two threads have 40 ms together
    monkeypatch.setattr(training, "timed", lambda _, run: (run(), RunTime(20.0, cpu_ms, 2))[1])
    assert ("Other programs kept the processors busy" in output_of(capsys, ["demo"])) == is_busy


def test_a_compiler_that_fails_is_reported_and_the_rest_runs(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_nothing(model: object) -> object:
        def run(x: object) -> object:
            raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found in: (None, 'g++')\ntrace")

        return run

    monkeypatch.setattr(torch, "compile", compile_nothing)
    text = output_of(capsys, ["demo"])
    assert re.search(r"^stock +[\d.]+ +1.00×$", text, re.MULTILINE)
    reason = "Not run: torch.compile needs a C++ compiler, such as g++, and found none.\n"
    assert (text.count("not run"), text.count(reason)) == (2, 1)
    assert "mucudnn.torch.convert(model, workspace=" in text
