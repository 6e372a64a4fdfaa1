"""Training scripts on a pipeline and on the undivided model, for `test_pipeline_training`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pipeline_cases as cases
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pipeline_cases import WIDTH, mse_loss
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mucudnn.torch.pipeline import BidirectionalPipeline

BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)


class Embed(cases.Layer):
    """A first stage with two inputs, which returns a dict."""

    def forward(self, features: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"hidden": torch.tanh(self.inner(features)), "mask": mask}


class Mix(cases.Layer):
    """A stage with normalization, whose inputs have names."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, mask: Tensor, hidden: Tensor) -> dict[str, Tensor]:
        return {"hidden": hidden + self.norm(self.inner(hidden * mask)), "mask": mask}


class Head(cases.Layer):
    """A last stage that returns a dict, of which the loss uses two entries."""

    def forward(self, hidden: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self.inner(hidden * mask), "hidden": hidden}


def make_stages(depth: int) -> list[nn.Module]:
    torch.manual_seed(depth)
    return [stage.double() for stage in (Embed(), *(Mix() for _ in range(depth - 2)), Head())]


def loss(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    error = mse_loss(outputs["logits"], targets["values"])
    return error + (outputs["hidden"].square() * targets["weights"]).mean()


def mini_batch(samples: int, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    random = torch.Generator().manual_seed(seed)

    def draw(width: int) -> Tensor:
        return torch.randn(samples, width, generator=random, dtype=torch.float64)

    return (
        {"features": draw(WIDTH), "mask": draw(1).sigmoid()},
        {"values": draw(WIDTH), "weights": draw(1).sigmoid()},
    )


def close(tensor: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(tensor, expected, rtol=1e-12, atol=1e-13)


def compare_weights(pipeline: BidirectionalPipeline, stages: list[nn.Module]) -> None:
    for (stage, _), module in pipeline.modules.items():
        for parameter, expected in zip(module.parameters(), stages[stage].parameters(), strict=True):
            close(parameter.detach(), expected.detach())


def whole_training(schedule: str, depth: int) -> None:
    """Train as a script does: uneven batches, accumulation, a learning-rate schedule, clipping and EMA."""
    undivided = make_stages(depth)
    pipeline = BidirectionalPipeline(copy.deepcopy(undivided), cases.make_mesh(depth), loss, schedule, 2)
    model = nn.ModuleList(undivided)
    sides = []
    for module, parameters in ((model, list(model.parameters())), (pipeline.module, pipeline.parameters())):
        optimizer = torch.optim.AdamW(parameters, lr=0.05)
        warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, decay], [2])
        average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        sides.append((optimizer, scheduler, average))
    for step, sizes in enumerate(([8, 8], [8, 7], [6, 3], [1, 8])):
        for optimizer, _, _ in sides:
            optimizer.zero_grad()
        for number, samples in enumerate(sizes):
            inputs, targets = mini_batch(samples, 10 * step + number)
            expected = loss(cases.run(undivided, inputs), targets)
            (expected / 2).backward()
            close(pipeline.step(inputs, targets, scale=0.5).cpu(), expected.detach())
        close(
            pipeline.clip_grad_norm_(0.1).double(), nn.utils.clip_grad_norm_(model.parameters(), 0.1).double()
        )
        for optimizer, scheduler, average in sides:
            optimizer.step()
            scheduler.step()
            average.update_parameters(model if average is sides[0][2] else pipeline.module)
    compare_weights(pipeline, undivided)
    expected_average = sides[0][2].module
    for name, parameter in sides[1][2].module.named_parameters():
        close(parameter.detach(), expected_average.get_parameter(name).detach())


def scale_together() -> tuple[list[float], list[bool], list[float]]:
    """Return the scales after each step, whether the step changed weights, and the distance at the end.

    The gradients of the first stage alone overflow in the second step.
    """
    torch.manual_seed(0)
    stages = [nn.Linear(WIDTH, WIDTH).double(), nn.Linear(WIDTH, WIDTH).double()]
    undivided = nn.Sequential(*copy.deepcopy(stages))
    pipeline = BidirectionalPipeline(stages, cases.make_mesh(2), mse_loss, "1f1b")
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
    expected = torch.optim.SGD(undivided.parameters(), lr=0.1)
    scaler = ShardedGradScaler("cpu", init_scale=1024.0, growth_interval=2)
    scales, changed = [], []
    for step in range(4):
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        optimizer.zero_grad()
        before = [p.detach().clone() for p in pipeline.parameters()]
        pipeline.step(x, x, scale=scaler.scale(torch.ones(())))
        if step == 1 and dist.get_rank() == 0:
            next(pipeline.parameters()).grad.fill_(float("inf"))
        if step != 1:
            expected.zero_grad()
            mse_loss(undivided(x), x).backward()
            expected.step()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        changed.append(any(bool((p != q).any()) for p, q in zip(pipeline.parameters(), before, strict=True)))
    distances = [
        float((p - undivided.get_parameter(name)).abs().max().detach())
        for name, p in pipeline.module.named_parameters()
    ]
    return scales, changed, distances


def evaluate(schedule: str, depth: int) -> list[bool]:
    """Compare evaluations between training steps. Return whether each gave outputs on this rank."""
    torch.manual_seed(3)
    stages = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5)).double()
        for _ in range(depth)
    ]
    pipeline = BidirectionalPipeline(stages, cases.make_mesh(depth), mse_loss, schedule, 2)
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    have_outputs = []
    for samples in (8, 3, 8):
        pipeline.step(x, x)
        gradients = [p.grad.clone() for p in pipeline.parameters() if p.grad is not None]
        buffers = [b.clone() for b in pipeline.module.buffers()]
        undivided = copy.deepcopy(stages)
        for part in dist_gather(pipeline.state_dict()):
            nn.Sequential(*undivided).load_state_dict(part, strict=False)
        output = pipeline.evaluate(x[:samples])
        have_outputs.append(output is not None)
        if output is not None:
            assert not output.requires_grad
            close(output, nn.Sequential(*undivided).eval()(x[:samples]).detach())
        assert all(layer.training for module in pipeline.modules.values() for layer in module.modules())
        for tensor, expected in zip(pipeline.module.buffers(), buffers, strict=True):
            torch.testing.assert_close(tensor, expected, rtol=0, atol=0)
        for parameter, gradient in zip(pipeline.parameters(), gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=0)
    return have_outputs


def evaluation_error(kind: str) -> str:
    """Return the error that an evaluation raises on this rank."""

    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if kind == "scalar":
                return x.sum()
            raise ZeroDivisionError("the last stage divides by zero")

    pipeline = BidirectionalPipeline(
        [nn.Linear(WIDTH, WIDTH), Fails()], cases.make_mesh(2), mse_loss, "1f1b", timeout=60
    )
    try:
        pipeline.evaluate(torch.randn(4, WIDTH))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def dist_gather(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def save_and_load(folder: str, schedule: str, depth: int) -> list[str]:
    """Save weights and the optimizer's state, train on, load them, and train again to the same result.

    Return the names of this rank's tensors.
    """
    pipeline = BidirectionalPipeline(make_stages(depth), cases.make_mesh(depth), loss, schedule)
    optimizer = torch.optim.Adam(pipeline.parameters(), lr=0.05)

    def train_a_step() -> dict[str, Tensor]:
        optimizer.zero_grad()
        pipeline.step(*mini_batch(4, 1))
        optimizer.step()
        return {name: tensor.clone() for name, tensor in pipeline.state_dict().items()}

    train_a_step()
    moments = get_optimizer_state_dict(pipeline.module, optimizer, options=BY_NAME)
    dcp.save({"model": pipeline, "optimizer": moments}, checkpoint_id=folder)
    expected = train_a_step()
    train_a_step()
    moments = get_optimizer_state_dict(pipeline.module, optimizer, options=BY_NAME)
    dcp.load({"model": pipeline, "optimizer": moments}, checkpoint_id=folder)
    set_optimizer_state_dict(pipeline.module, optimizer, moments, options=BY_NAME)
    for name, tensor in train_a_step().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0)
    return list(expected)


def load_whole(path: str, depth: int) -> list[str]:
    """Load the undivided model's file on all ranks, and return errors of dicts that do not fit."""
    state = torch.load(Path(path))
    pipeline = BidirectionalPipeline(make_stages(depth), cases.make_mesh(depth), loss, "gems")
    pipeline.load_state_dict(state)
    for name, tensor in pipeline.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=0)
    texts = []
    partial = {name: tensor for name, tensor in state.items() if not name.startswith("1.")}
    for wrong in ({**state, "9.inner.weight": torch.zeros(1)}, partial):
        try:
            pipeline.load_state_dict(wrong)
        except Exception as error:
            texts.append(f"{type(error).__name__}: {error}")
    return texts
