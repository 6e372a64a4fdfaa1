"""`FlopCounterMode` counts the same operations for a converted model as for the stock one."""

import copy

import pytest
from needs_torch import mt, torch
from torch.utils.flop_counter import FlopCounterMode

nn = torch.nn
CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "1-D": (nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    "2-D, strided": (nn.Conv2d(4, 6, 3, stride=2), (2, 4, 9, 8)),
    "2-D, dilated": (nn.Conv2d(4, 6, 3, dilation=2, padding=1), (2, 4, 9, 8)),
    "2-D, groups": (nn.Conv2d(4, 6, 3, groups=2), (2, 4, 9, 8)),
    "2-D, depthwise": (nn.Conv2d(4, 8, 3, groups=4, bias=False), (2, 4, 9, 8)),
    "2-D, without the batch": (nn.Conv2d(4, 6, 3), (4, 9, 8)),
    "3-D, groups": (nn.Conv3d(4, 6, (1, 2, 3), groups=2), (2, 4, 5, 6, 7)),
    "chain": (nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 1)), (2, 4, 9, 8)),
    "beside a transposed one": (
        nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), nn.Conv2d(6, 4, 3, padding="same")),
        (2, 4, 9, 8),
    ),
}


def counted(model: nn.Module, shape: tuple[int, ...], step: str) -> tuple[int, dict[str, int]]:
    """Return the total of the counted operations, and the sum for each module."""
    x = torch.randn(shape, requires_grad=step == "all gradients")
    if step == "only dx":
        x.requires_grad_()
        model = copy.deepcopy(model).requires_grad_(False)
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(step != "no gradients"):
        y = model(x)
        if step != "no gradients":
            y.sum().backward()
    modules = {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}
    return counter.get_total_flops(), modules


@pytest.mark.parametrize("step", ["no gradients", "only dx", "gradients of parameters", "all gradients"])
@pytest.mark.parametrize("case", CASES)
def test_a_converted_model_counts_as_the_stock_one(case: str, step: str) -> None:
    model, shape = copy.deepcopy(CASES[case])
    expected = counted(model, shape, step)
    assert expected[0] > 0
    assert counted(mt.convert(model), shape, step) == expected


def test_a_transform_counts_too() -> None:
    x, w = torch.randn(2, 4, 8, 8), torch.randn(6, 4, 3, 3)
    totals = []
    for convolution in (torch.nn.functional.conv2d, mt.conv2d):
        with FlopCounterMode(display=False) as counter:
            torch.func.vjp(convolution, x, w)[1](torch.ones(2, 6, 6, 6))
        totals.append(counter.get_total_flops())
    assert totals[0] == totals[1] > 0
