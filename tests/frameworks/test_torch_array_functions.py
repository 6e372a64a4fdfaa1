"""Tensors that the array functions cannot read are refused by name."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from needs_torch import torch

import mucudnn
from mucudnn.errors import MucudnnError

X, W = torch.ones(2, 3, 5, 5), torch.ones(4, 3, 3, 3)


def unaligned() -> torch.Tensor:
    values = torch.frombuffer(bytearray(4 * 151), dtype=torch.float32, offset=1, count=150)
    return values.reshape(X.shape)


def masked() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of MaskedTensors is in prototype stage")
        return torch.masked.MaskedTensor(X, X > 0)


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors is in prototype stage")
        return torch.nested.nested_tensor([X[0], X[1]])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (unaligned, "the address of x is not a multiple of the size of its elements"),
        (masked, "x has no memory"),
        (nested, "x is sparse, nested or lazily negated"),
        (lambda: X.to_sparse(), "x is sparse, nested or lazily negated"),
        (lambda: X.expand(2, 2, 3, 5, 5)[:, 0], "x is not contiguous"),
        (lambda: torch.Tensor, "x is _TensorMeta, not an array"),
    ],
)
def test_unusable_tensors_are_refused(make: Callable[[], torch.Tensor], says: str) -> None:
    with pytest.raises(MucudnnError, match=says):
        mucudnn.convolution_forward(make(), W)


def test_a_tensor_within_a_transform_has_no_memory_of_its_own() -> None:
    with pytest.raises(MucudnnError, match="x has no memory of its own"):
        torch.vmap(lambda x: mucudnn.convolution_forward(x, W))(X.expand(2, 2, 3, 5, 5))


def test_tensors_without_axes_are_numbers() -> None:
    one = torch.tensor(1)
    expected = mucudnn.convolution_forward(X, W, padding=1)
    result = mucudnn.convolution_forward(X, W, stride=one, padding=torch.tensor([1, 1]), alpha=one)
    np.testing.assert_array_equal(result, expected)
