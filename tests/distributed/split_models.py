"""Models that are cut into stages unchanged, for `test_pipeline_split`."""

from __future__ import annotations

import copy
from typing import Any

import pipeline_cases as cases
import torch
from pipeline_cases import WIDTH
from torch import Tensor, nn

from mucudnn.torch.pipeline import BidirectionalPipeline, split


class UNet(nn.Module):
    """A small U-Net, whose first features are needed at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, 2, 1)])
        self.middle = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(inplace=True))
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.head = nn.Conv2d(8, 3, 1)
        self.scale = nn.Parameter(torch.ones(1, 4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.down[0](x)) * self.scale
        second = torch.relu(self.down[1](first))
        up = self.up(self.middle(second) + second) * self.scale
        return self.head(torch.cat([up, first], 1)) + x


class Branch(cases.Layer):
    """A module that cannot be traced, because it reads a value."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y if float(y.detach().sum()) > 0 else -y


class Halved(cases.Layer):
    """A module whose code makes a tensor of half of the samples."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 0 * x[::2].sum()


class OwnDropout(nn.Module):
    """A module whose result depends on `self.training`."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, self.training)


class Moded(nn.Module):
    """A model that reads its mode outside of its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x)) if self.training else self.b(self.a(x)) * 2


class Named(nn.Module):
    """A model with inputs by name and a dict as output, a buffer, and a weight that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Sequential(nn.Linear(2, 2))
        self.register_buffer("shift", torch.arange(WIDTH) / 7.0, persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, gate: Tensor) -> dict[str, Any]:
        y = self.first(x if mask is None else x * mask) + self.shift
        y = y.view(y.shape[0], -1)
        return {"y": torch.tanh(self.last(y.sigmoid() * gate)), "gate": gate + self.shift}


class Shared(nn.Module):
    """A model that runs a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.between = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.between(torch.tanh(self.layer(x)))))


class Views(nn.Module):
    """A model that changes a tensor in place after it has made a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers[0](x)
        half = y[:, : WIDTH // 2]
        z = torch.tanh(self.layers[1](x)) + y.abs().detach()
        y += z
        return self.layers[2](y) + torch.cat([half, half.sigmoid()], 1)


def sequential() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Sequential(nn.BatchNorm1d(WIDTH), Branch()),
        OwnDropout(), Halved(), Halved(), nn.Linear(WIDTH, WIDTH),
    )  # fmt: skip


def vectors(samples: int = 4) -> Tensor:
    return torch.randn(samples, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def images(samples: int = 4) -> Tensor:
    return torch.randn(samples, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


MODELS = {
    "sequential": (sequential, vectors),
    "u-net": (UNet, images),
    "named": (Named, lambda samples=4: {"x": vectors(samples), "gate": vectors(samples).sigmoid()}),
    "shared": (Shared, vectors),
    "views": (Views, vectors),
}


def make(name: str) -> tuple[nn.Module, Any]:
    """Return a model in fp64 and inputs."""
    torch.manual_seed(0)
    make_model, make_inputs = MODELS[name]
    return make_model().double(), make_inputs()


def call(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def loss(outputs: Any, targets: Tensor) -> Tensor:
    values = outputs["y"] if isinstance(outputs, dict) else outputs
    return (values - targets).square().mean()


def train(name: str, schedule: str, depth: int) -> tuple[list[str], list[tuple[str, ...]]]:
    """Train a model that is cut into stages, and undivided. Raises AssertionError if they differ.

    Return this rank's names, and the first operations of the stages as each rank cut them.
    """
    model, inputs = make(name)
    model.train()
    for layer in model.modules():  # they differ between micro-batches and the mini-batch
        if isinstance(layer, nn.BatchNorm1d | OwnDropout | Branch):
            layer.eval()
    undivided = copy.deepcopy(model)
    mesh = cases.make_mesh(depth)
    parts = split(model, stages=depth, example_input=inputs)
    pipeline = BidirectionalPipeline(parts, mesh, loss, schedule)
    optimizers = [torch.optim.Adam(p, lr=0.01) for p in (pipeline.parameters(), undivided.parameters())]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        targets = torch.full_like(inputs if isinstance(inputs, Tensor) else inputs["x"], step)
        expected = loss(call(undivided, inputs), targets)
        expected.backward()
        torch.testing.assert_close(pipeline.step(inputs, targets), expected.detach(), rtol=1e-12, atol=1e-13)
        for optimizer in optimizers:
            optimizer.step()
    state = undivided.state_dict()
    for key, tensor in pipeline.state_dict().items():
        torch.testing.assert_close(tensor, state[key], rtol=1e-11, atol=1e-12)
    pipeline.load_state_dict(state)
    output = pipeline.evaluate(inputs)
    if output is not None:
        torch.testing.assert_close(output, call(undivided.eval(), inputs), rtol=1e-12, atol=1e-13)
    assert all(torch.equal(tensor, state[key]) for key, tensor in pipeline.state_dict().items())
    names: list[Any] = [None] * depth
    torch.distributed.all_gather_object(names, [part.split_operations[0].name for part in parts])
    return list(pipeline.state_dict()), names


def train_from_meta(depth: int) -> None:
    """Cut a model on the meta device, make this rank's stages real, load weights, and compare the outputs."""
    model, inputs = make("u-net")
    with torch.device("meta"):
        on_meta = UNet().double()
    parts = split(on_meta, stages=depth, example_input=inputs)
    parts[torch.distributed.get_rank()].to_empty(device="cpu")
    pipeline = BidirectionalPipeline(parts, cases.make_mesh(depth), loss, "1f1b")
    pipeline.load_state_dict(model.state_dict())
    output = pipeline.evaluate(inputs)
    if output is not None:
        torch.testing.assert_close(output, model(inputs).detach(), rtol=1e-12, atol=1e-13)
