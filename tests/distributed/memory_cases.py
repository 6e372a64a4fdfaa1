"""Cases that every rank of a world runs: planned and converted models in DistributedDataParallel."""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from memory_on_cpu import run_on_cpu
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mucudnn.torch as mt
from mucudnn.errors import MucudnnWarning
from mucudnn.torch.training import apply


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1),
    )  # fmt: skip


def converted(is_wrapped_first: bool) -> None:
    """Compare the gradients of a converted model. Raises AssertionError if they differ."""
    stock, ours = DistributedDataParallel(_model()), _model()
    if is_wrapped_first:
        wrapped = mt.convert(DistributedDataParallel(ours))
    else:
        wrapped = DistributedDataParallel(mt.convert(ours))
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(dist.get_rank()))
    for model in (stock, wrapped):
        model(x).square().mean().backward()
    gradients = [[p.grad for p in model.parameters()] for model in (wrapped, stock)]
    torch.testing.assert_close(*gradients)


def train(policy: str, is_wrapped_first: bool) -> tuple[bool, int]:
    """Train with and without a plan at its floor, and accumulate gradients of two mini-batches.

    Return whether parameters and buffers are equal, bit by bit, and the number of copies.
    """
    model, x = _model(), torch.empty(4, 3, 32, 32)
    options: dict[str, Any] = {"device": "h200", "policy": policy, "workspace": 0}
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error", MucudnnWarning)
        run_on_cpu(patch)
        patch.setattr(apply, "_divide", lambda *_: None)
        floor = mt.plan_memory(model, x, memory=2**40, **options).floor
        plan = mt.plan_memory(model, x, memory=floor, **options)
        under_plan = copy.deepcopy(model)
        if is_wrapped_first:
            wrapped = DistributedDataParallel(under_plan)
            mt.apply(under_plan, plan)
        else:
            wrapped = DistributedDataParallel(mt.apply(under_plan, plan))
        _train(DistributedDataParallel(model))
        _train(wrapped)
        pairs = zip(model.state_dict().values(), under_plan.state_dict().values(), strict=True)
        return all(torch.equal(expected, actual) for expected, actual in pairs), apply.runtime_of(
            wrapped
        ).lanes.copies


def _train(model: DistributedDataParallel) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        with nullcontext() if step % 2 else model.no_sync():
            model(torch.randn(4, 3, 32, 32, generator=generator)).square().mean().backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
