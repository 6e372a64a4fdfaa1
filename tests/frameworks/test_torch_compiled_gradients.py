"""Compiled training of converted networks: all gradients against fp64, beside stock PyTorch's.

In fp64 they agree to rounding. In fp32, a ReLU near 0 or a maximum of nearly equal numbers passes its
gradient elsewhere when another algorithm rounds otherwise: of 40 cases, 7 had errors of 1e-5 to 4e-2 where
stock's were smaller, and the same cases agree in fp64. A wrong gradient has an error of about 1.

A case is its seed, which gives the network, its size, the number of threads, and for each pass of each
convolution whether Inductor keeps it or which of the engine's ways runs it. On demand:

    TEST_CASES=40   try ten networks of torchvision and MONAI, each at two sizes, on one thread and on two
    OPENBLAS_CORETYPE=Haswell   multiply matrices as on a machine without AVX-512
"""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from needs_torch import mt, torch
from programs import imported, imported_torchvision
from random_cases import cases
from torch import Tensor, nn

from mucudnn.torch.compiling import graph_pass, operators
from mucudnn.torch.compiling.operators import CompiledCall, EngineChoice

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # Inductor and Dynamo give them.
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


class Case(NamedTuple):
    """A network, two numbers of samples and pixels of its input, and its channels and axes."""

    build: Callable[[], nn.Module]
    sizes: tuple[tuple[int, int], tuple[int, int]]
    channels: int = 3
    axes: int = 2


def from_torchvision(name: str, **arguments: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model: nn.Module = imported_torchvision().models.get_model(name, weights=None, **arguments)
        return model

    return build


def from_monai(name: str, **arguments: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        imported("monai")
        from monai.networks import nets

        return getattr(nets, name)(**arguments)  # type: ignore[no-any-return]

    return build


CASES = {
    "unet": Case(
        from_monai(
            "UNet", spatial_dims=2, in_channels=3, out_channels=2, channels=(8, 16, 32), strides=(2, 2)
        ),
        ((4, 64), (2, 96)),
    ),
    "squeezenet": Case(from_torchvision("squeezenet1_1"), ((2, 64), (3, 97))),
    "alexnet": Case(from_torchvision("alexnet"), ((8, 128), (3, 97))),
    "vgg11": Case(from_torchvision("vgg11"), ((2, 64), (3, 96))),
    "resnet18": Case(from_torchvision("resnet18"), ((4, 64), (3, 97))),
    "mobilenet_v2": Case(from_torchvision("mobilenet_v2"), ((4, 64), (3, 97))),
    "shufflenet_v2": Case(from_torchvision("shufflenet_v2_x0_5"), ((4, 64), (3, 97))),
    "googlenet": Case(
        from_torchvision("googlenet", aux_logits=False, init_weights=False), ((4, 64), (3, 97))
    ),
    "basicunet": Case(
        from_monai(
            "BasicUNet", spatial_dims=3, in_channels=1, out_channels=2, features=(8, 8, 16, 16, 32, 8)
        ),
        ((2, 32), (1, 48)),
        channels=1,
        axes=3,
    ),
    "dynunet": Case(
        from_monai(
            "DynUNet", spatial_dims=3, in_channels=1, out_channels=3, filters=[8, 16, 32, 32],
            kernel_size=[3] * 4, strides=[1, 2, 2, 2], upsample_kernel_size=[2, 2, 2], norm_name="instance",
        ),
        ((2, 32), (1, 48)),
        channels=1,
        axes=3,
    ),
}  # fmt: skip


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def gradients(model: nn.Module, x: Tensor, run: Callable[[Tensor], Any]) -> list[Tensor]:
    """Return the gradients of the input and of the parameters after a step."""
    x = x.clone().requires_grad_()
    run(x).square().mean().backward()
    grads = [x.grad, *(parameter.grad for parameter in model.parameters())]
    assert all(grad is not None for grad in grads)
    return grads  # type: ignore[return-value]


def errors(grads: list[Tensor], exact: list[Tensor]) -> list[float]:
    """Return the error of each gradient, relative to its norm or, if that is tiny, to the largest norm."""
    least = 1e-4 * max(float(grad.norm()) for grad in exact)
    return [
        float((grad.double() - right).norm()) / max(float(right.norm()), least)
        for grad, right in zip(grads, exact, strict=True)
    ]


def assert_gradients_are_as_exact_as_stock(model: nn.Module, x: Tensor) -> None:
    """Assert that no error in fp64 is above rounding, and none in fp32 above 10 times stock's and 0.1."""
    wide, plain = copy.deepcopy(model).double(), copy.deepcopy(model)
    exact = gradients(wide, x.double(), wide)
    stock = errors(gradients(plain, x, plain), exact)
    names = ["input", *(name for name, _ in model.named_parameters())]
    for dtype, bounds in (
        (torch.float32, [max(10 * error, 0.1) for error in stock]),
        (torch.float64, [1e-10] * len(stock)),
    ):
        converted = mt.convert(copy.deepcopy(model).to(dtype), workspace="16MiB")
        ours = errors(gradients(converted, x.to(dtype), torch.compile(converted)), exact)
        pairs = zip(names, ours, bounds, strict=True)
        assert not {name: (own, bound) for name, own, bound in pairs if own > bound}


@pytest.mark.parametrize("seed", cases(1))
def test_all_gradients_are_as_exact_as_stock(
    seed: int, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seeds 0 to 19 have each network at both sizes, and the next 20 have the other number of threads.
    name = list(CASES)[seed % len(CASES)]
    case, round_ = CASES[name], seed // len(CASES)
    threads(1 + (seed + round_ // 2) % 2)
    draw = random.Random(seed)

    def choose(call: CompiledCall, *_: Any) -> EngineChoice | None:
        return draw.choice([None, *operators.choices(call)])

    monkeypatch.setattr(graph_pass, "choose", choose)
    torch.manual_seed(seed)
    model = case.build()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):  # Inductor draws other numbers
            module.p = 0.0
    samples, pixels = case.sizes[round_ % 2]
    assert_gradients_are_as_exact_as_stock(model, torch.randn(samples, case.channels, *[pixels] * case.axes))
