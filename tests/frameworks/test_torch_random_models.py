"""Converted random models give the values, strides and types of the stock models.

TEST_CASES=400 tries that many models instead of 20. TEST_SEED=1000 begins with another seed.
"""

import random

import pytest
from needs_torch import mt, torch
from random_cases import cases
from random_models import Sample, sample

from mucudnn.arrays import dispatch
from mucudnn.arrays.recent import Recent

SEEDS = cases(20)
EPSILON = {torch.float32: 2e-5, torch.float64: 1e-11, torch.bfloat16: 3e-2}
pytestmark = [
    # PyTorch copies x for an even kernel with 'same', and warns that this is slow.
    pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning"),
    # torch.utils.checkpoint gives this warning where only the parameters need a gradient.
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning"),
    # `convert` names parametrized convolutions that have most of a model's weights.
    pytest.mark.filterwarnings("ignore:mucudnn.* stay PyTorch's:mucudnn.MucudnnWarning"),
]


def convert(stock: Sample) -> Sample:
    """Convert a sample with a limit or a plan that depends on its seed."""
    r = random.Random(stock.seed)
    limit = r.choice([None, "0", "64KiB", "1MiB", "none"])
    if r.random() < 0.2 and stock.step == "train":
        plan = mt.plan(stock.model.eval(), stock.x, workspace=limit)
        return stock.converted(lambda model: mt.convert(model, plan=plan, workspace=limit))
    return stock.converted(lambda model: mt.convert(model, workspace=limit))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_converted_model_does_what_the_stock_one_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_prepared", Recent(4096))
    stock = sample(seed)
    converted, exact = convert(stock), stock.in_fp64()
    for _ in range(2):  # the second step adds to the gradients
        results, expected, wanted = converted.results(), stock.results(), exact.results()
    # mucudnn has decided, PyTorch has not run alone
    assert dispatch._prepared or stock.step == "transform"
    assert results.keys() == expected.keys()
    epsilon = EPSILON[stock.autocast or stock.x.dtype]
    scale = max(tensor.norm() for tensor in wanted.values())
    for name, mine in results.items():
        theirs, right = expected[name], wanted[name]
        assert (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype), name
        error, allowed = (mine.double() - right).norm(), 3 * (theirs.double() - right).norm()
        # The stock result may be NaN, and then `allowed` is.
        assert error <= allowed + epsilon * scale or error <= epsilon * scale, name
