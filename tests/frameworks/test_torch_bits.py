"""A plan or a warm cache gives the same bits in every process."""

import sys
from pathlib import Path

import pytest
from needs_torch import mt, torch
from plans import plan_by
from programs import run

import mucudnn
from mucudnn.costs.cache import Cache
from mucudnn.problems.shapes import problem_of

# A program that runs two steps of a model on one thread, converted with the plan that an argument names, and
# prints the bits of the second's results. A shape is measured when it comes again.
STEP = """
import sys
import torch
import mucudnn.torch

torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Conv2d(16, 24, 3, padding=1)
x = torch.randn(16, 16, 28, 28, requires_grad=True)
mucudnn.torch.convert(model, plan=(sys.argv[1:] or [None])[0], workspace="256KiB")
model(x).sum().backward()
y = model(x)
for result in (y, *torch.autograd.grad(y.sin().sum(), (x, model.weight, model.bias))):
    print(result.detach().numpy().tobytes().hex())
"""


def bits(cache: Path, *plan: Path) -> list[str]:
    """Return the bits of y, dx, dw and db, computed in a new process."""
    # The second step decides all.
    ran = run(sys.executable, "-c", STEP, *plan, MUCUDNN_CACHE=str(cache), MUCUDNN_BUDGET="1h")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    module, x = torch.nn.Conv2d(16, 24, 3, padding=1), torch.randn(16, 16, 28, 28, requires_grad=True)
    mucudnn.write_plan(mt.plan(module, x, workspace="256KiB"), tmp_path / "a.plan")
    torch.set_num_threads(threads)
    return tmp_path / "a.plan"


def test_with_a_plan_two_cold_processes_give_the_same_bits(plan: Path, tmp_path: Path) -> None:
    first, second = bits(tmp_path / "one.sqlite", plan), bits(tmp_path / "two.sqlite", plan)
    assert len(first) == 4
    assert first == second
    assert not (tmp_path / "one.sqlite").exists()  # nothing was measured


def test_with_a_warm_cache_later_processes_give_the_same_bits(tmp_path: Path) -> None:
    first = bits(tmp_path / "cache.sqlite")
    with Cache.read_only(tmp_path / "cache.sqlite") as cache:
        assert cache.machines()
    assert bits(tmp_path / "cache.sqlite") == first


@pytest.mark.parametrize("parts", [(16,), (8, 8)])
def test_another_choice_may_give_other_bits_of_the_filters_gradient(parts: tuple[int, ...]) -> None:
    x, w = torch.randn(16, 16, 28, 28), torch.randn(24, 16, 3, 3, requires_grad=True)
    problem = problem_of("f32", "nchw", tuple(x.shape), tuple(w.shape), 1, 1, 1, 1)

    def gradient(algorithm: str) -> torch.Tensor:
        algorithms = {"forward": "IMPLICIT_GEMM", "backward_filter": algorithm}
        y = mt.conv2d(x, w, padding=1, plan=plan_by(algorithms, problem, *parts))
        return torch.autograd.grad(y.sum(), w)[0]

    plain, winograd = gradient("ALGO_1"), gradient("WINOGRAD_NONFUSED")
    assert torch.equal(plain, gradient("ALGO_1"))
    assert torch.equal(winograd, gradient("WINOGRAD_NONFUSED"))
    assert not torch.equal(plain, winograd)
    torch.testing.assert_close(plain, winograd, rtol=1e-3, atol=1e-2)
