"""The cache keeps the trials of batch-invariant algorithms, so that no later process makes them again."""

import sys
from pathlib import Path

import pytest
from cached_rows import change_rows
from programs import run

from mucudnn._native import Engine, host_library, parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.schema import TRIAL
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.runners import Race
from mucudnn.plans.fixed import invariant_choice
from mucudnn.problems.kernels import Kernel

# It prints the number of trials, and a digest of the results.
PROGRAM = """
import hashlib, sys
import numpy as np
import mucudnn
from mucudnn.plans import trial

class Counted(trial._Trial):
    made = 0

    def has_equal_bits(self):
        Counted.made += 1
        return super().has_equal_bits()

trial._Trial = Counted
random = np.random.default_rng(1)
x, w = (random.standard_normal(shape, np.float32) for shape in ((8, 16, 14, 14), (16, 16, 3, 3)))
y = mucudnn.convolution_forward(x, w, padding=1, workspace="1MiB", batch_invariant=True)
print(Counted.made, hashlib.sha256(y.tobytes()).hexdigest())
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache.sqlite"
    monkeypatch.setenv("MUCUDNN_CACHE", str(path))
    return path


def call(path: Path, **variables: str) -> tuple[bool, str, str]:
    """Return whether a new process makes a trial, the digest of its results, and its messages."""
    done = run(sys.executable, "-c", PROGRAM, MUCUDNN_CACHE=str(path), MUCUDNN_LIBRARY="host", **variables)
    assert done.returncode == 0, done.stderr
    made, digest = done.stdout.split()
    return int(made) > 0, digest, done.stderr


def change(path: Path, values: dict[str, object]) -> None:
    with Cache.open(path) as cache:
        change_rows(cache, TRIAL, lambda _: values)


def test_a_second_process_makes_no_trial(path: Path) -> None:
    made, digest, _ = call(path)
    assert made
    assert call(path) == (False, digest, "")


@pytest.mark.parametrize("outcome", [False, True])
def test_a_kept_outcome_decides_between_slices_and_larger_ones(path: Path, *, outcome: bool) -> None:
    kernel = Kernel(parse_descriptor("mb8_ic16ih14_oc16_kh3_ph1")[0], "forward")
    with Cache.open(path) as cache:
        bench = Bench(Engine(host_library()), cache, Listener(), Race())
        invariant_choice(bench, kernel, None)
        change_rows(cache, TRIAL, lambda _: {"is_invariant": int(outcome)})
        sizes = {part.micro_batch for part in invariant_choice(bench, kernel, None).parts}
    assert (sizes != {1}) is outcome


@pytest.mark.parametrize(
    "values",
    [
        {"library": "mucudnn-host 0.0.9"},
        {"threads": 64},
        {"micro_batch": 1000},
    ],
)
def test_a_trial_of_something_else_is_made_again(path: Path, values: dict[str, object]) -> None:
    _, digest, _ = call(path)
    change(path, values)
    assert call(path) == (True, digest, "")
    assert call(path) == (False, digest, "")
