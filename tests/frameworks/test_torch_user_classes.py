"""Converted models keep the classes of their blocks, so later changes of a class or of a weight count."""

from typing import Any
from unittest import mock

import pytest
from needs_torch import mt, torch
from torch import Tensor, nn

X = torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x)))


@pytest.fixture
def model() -> Any:
    torch.manual_seed(2)
    return mt.convert(nn.Sequential(Block(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)).double().eval())


def test_blocks_keep_their_classes(model: Any) -> None:
    assert type(model) is nn.Sequential
    assert type(model[0]) is Block


def test_a_method_that_is_replaced_later_runs(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad(), mock.patch.object(Block, "forward", lambda self, x: x.new_zeros(2, 4, 4, 4)):
        assert model[0](X).count_nonzero() == 0
    monkeypatch.setattr(Block, "forward", lambda self, x: x.new_ones(2, 4, 4, 4))
    assert model[0](X).mean() == 1


def test_super_of_an_objects_own_class_finds_the_base_class() -> None:
    class Frozen(Block):
        def train(self, mode: bool = True) -> Any:
            super(self.__class__, self).train(mode)
            self.bn.eval()
            return self

    model = mt.convert(Frozen()).train()
    assert model.conv.training
    assert not model.bn.training


@pytest.mark.parametrize("name", ["0.conv.weight", "0.conv.bias", "0.bn.weight", "1.weight", "2.bias"])
@torch.no_grad()
def test_differences_by_writes_to_data_are_the_gradient(model: Any, name: str) -> None:
    parameter, step = model.get_parameter(name), 1e-6
    with torch.enable_grad():
        model(X).square().sum().backward()
    values, differences = parameter.data.view(-1), []
    for i in range(len(values)):
        values[i] += step
        above = model(X).square().sum()
        values[i] -= 2 * step
        below = model(X).square().sum()
        values[i] += step
        differences.append((above - below) / (2 * step))
    torch.testing.assert_close(torch.stack(differences), parameter.grad.view(-1), rtol=1e-5, atol=1e-5)
