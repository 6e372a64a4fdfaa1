"""The demo trains a network in four ways, whose gradients agree."""

import re

import pytest
from command_line import Capture, json_of, output_of
from needs_torch import torch

from mucudnn.cli import demo_training as training
from mucudnn.torch import benchmarking

pytestmark = pytest.mark.usefixtures("cache_path")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the demo take seconds: small volumes, few rounds, and a compiler that generates no code."""
    compile_ = torch.compile
    monkeypatch.setattr(training, "SHAPE", (1, 1, 8, 8, 8))
    monkeypatch.setattr(benchmarking, "_ROUNDS", 8)
    monkeypatch.setattr(torch, "compile", lambda model: compile_(model, backend="aot_eager"))


def test_all_ways_compute_the_same_gradients(capsys: Capture) -> None:
    result = json_of(capsys, ["demo", "--json"])["benchmark"]
    assert [way["name"] for way in result["ways"]] == ["stock", "compiled", "converted", "both"]
    assert not any(way["reason"] for way in result["ways"])
    assert 0 < result["difference"] < 1e-4


def test_the_reason_of_a_failure_is_more_than_the_name_of_a_backend() -> None:
    error = RuntimeError(
        "backend='inductor' raised:\nImportError: libfour.so: cannot open\n\nSet TORCHDYNAMO_VERBOSE=1"
    )
    assert benchmarking._reason(error) == "ImportError: libfour.so: cannot open"
    assert benchmarking._reason(RuntimeError()) == "RuntimeError"


def test_a_compiler_that_fails_is_reported_and_the_rest_runs(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_nothing(model: object) -> object:
        def run(x: object) -> object:
            raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found in: (None, 'g++')\ntrace")

        return run

    monkeypatch.setattr(torch, "compile", compile_nothing)
    text = output_of(capsys, ["demo"])
    assert re.search(r"^stock +\S+", text, re.MULTILINE)
    reason = "Not run: InvalidCxxCompiler: No working C++ compiler found in: (None, 'g++')\n"
    assert (text.count("not run"), text.count(reason)) == (2, 1)
    assert "mucudnn.torch.convert(model, workspace=" in text
