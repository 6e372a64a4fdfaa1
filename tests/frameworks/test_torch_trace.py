"""`trace` finds the steps of a model's training step without memory, and all that autograd saves."""

import copy
from collections.abc import Callable

import pytest
from needs_torch import mt, torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.lib.models import Block
from examples.unet3d import UNet3d
from mucudnn.problems.network import Network
from mucudnn.torch.tracing.trace import fingerprint, trace_model

nn = torch.nn


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * 16, 10),
    )  # fmt: skip


def attending() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))


def blocks() -> nn.Module:
    return nn.Sequential(Block(3, 16, 2), Block(16, 16, 1), nn.AdaptiveAvgPool2d(1))


class Residual(nn.Module):
    """A sum of two branches, with functions outside of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        return torch.relu(self.second(x) + x).mean((2, 3))


class Casting(nn.Module):
    """A model that calls one layer twice, each time within an autocast of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = self.second(self.norm(self.first(x)).relu())
        with torch.autocast("cpu", torch.bfloat16):
            x = self.second(x).tanh()
        return x.float().square()


X = torch.empty(2, 3, 8, 8)


def test_a_step_reads_writes_and_saves_what_pytorch_does() -> None:
    network = mt.trace(small(), X)
    step = {step.name: step for step in network.steps}
    assert [name for name in step if "." not in name] == ["0", "1", "2", "3", "5", "loss"]
    assert step["0"].saves == ("input", "0.weight")
    assert step["1"].saves[0] == "0"  # the norm saves the convolution's result
    assert step["2"].saves == ("2",)  # ReLU saves its result
    assert network.tensor("2").in_place_of == "1"
    assert step["3"].saves == ("2", "3:2")  # its input, which ReLU has saved too, and the indices
    assert network.tensor("3:2").data_type == "i64"
    assert [step.backward_of for step in network.steps if step.backward_of] == ["5", "3", "2", "1", "0"]
    assert [kernel.pass_ for kernel in step["0"].kernels] == ["forward"]
    assert [kernel.pass_ for kernel in step["0.backward"].kernels] == ["backward_filter"]
    kinds = {tensor.name: tensor.kind for tensor in network.tensors}
    assert (kinds["0.weight.grad"], kinds["5"], kinds["1.running_mean"]) == ("gradient", "output", "buffer")
    assert Network.parse(str(network)) == network


def test_the_model_keeps_its_values_gradients_and_hooks() -> None:
    model = small()
    before = copy.deepcopy(model.state_dict())
    mt.trace(model, X)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_model_too_large_for_any_memory_is_traced() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 2**20, 3), nn.Flatten(), nn.Linear(2**20 * 36, 2**10))
        x = torch.empty(2**10, 3, 8, 8)
    network = mt.trace(model, x)
    assert sum(tensor.bytes for tensor in network.tensors if tensor.kind == "parameter") > 2**37


def test_without_gradients_it_is_an_inference() -> None:
    model = small().requires_grad_(False)
    network = mt.trace(model, X)
    assert network.turn == len(network.steps)
    assert not network.saved


def test_a_transposed_convolution_is_a_backward_kernel() -> None:
    model = nn.ConvTranspose2d(3, 5, 3, stride=2, padding=1, output_padding=1)
    network = mt.trace(model, X.clone().requires_grad_())
    assert [kernel.pass_ for kernel in network.steps[0].kernels] == ["backward_data"]
    assert network.steps[0].kernels[0].problem.input == (16, 16)
    backward = network.steps[-1].kernels
    assert {kernel.pass_ for kernel in backward} == {"forward", "backward_filter"}


@pytest.mark.parametrize("is_input_last", [True, False])
@pytest.mark.parametrize(
    ("model", "shape"), [(blocks(), (2, 3, 16, 16)), (UNet3d(), (1, 1, 8, 8, 8))], ids=["2-D", "3-D"]
)
def test_channels_last_filters_keep_all_kernels_in_nhwc(
    model: nn.Module, shape: tuple[int, ...], is_input_last: bool
) -> None:
    memory_format = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = torch.randn(shape)
    if is_input_last:
        x = x.contiguous(memory_format=memory_format)
    network = mt.trace(copy.deepcopy(model).to(memory_format=memory_format), x)
    assert {kernel.problem.layout for step in network.steps for kernel in step.kernels} == {"nhwc"}


def test_depthwise_convolutions_keep_the_channels_last() -> None:
    # PyTorch has CUDA kernels of its own for them, but takes cuDNN's for this memory format.
    model = nn.Conv2d(4, 4, 3, groups=4).to(memory_format=torch.channels_last)
    assert mt.trace(model, torch.randn(2, 4, 8, 8)).steps[0].kernels[0].problem.layout == "nhwc"


def test_a_gradient_in_another_memory_format_is_copied() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.GroupNorm(2, 8)).to(memory_format=torch.channels_last)
    network = mt.trace(model, torch.empty(2, 8, 4, 4).to(memory_format=torch.channels_last))
    written = [network.tensor(name) for name in network.steps[-1].writes]
    # The gradients of the filters and of the bias, and the copy of the norm's gradient, which is contiguous.
    assert sorted(tensor.shape for tensor in written) == [(2, 8, 4, 4), (8,), (8, 8, 1, 1)]


def test_dropout_saves_a_mask_of_bytes_as_on_a_gpu() -> None:
    network = mt.trace(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), torch.empty(5, 3))
    assert network.tensor("1:2").data_type == "bool"


def test_the_fingerprint_distinguishes_models_and_ignores_values() -> None:
    assert fingerprint(small()) == fingerprint(small())
    assert fingerprint(small()) != fingerprint(small().eval())
    assert fingerprint(small()) != fingerprint(Residual())


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (small, (2, 3, 8, 8)), (Residual, (2, 3, 8, 8)), (blocks, (2, 3, 16, 16)), (UNet3d, (1, 1, 8, 8, 8)),
        (Casting, (2, 3, 8, 8)), (attending, (2, 64, 8)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_cast", [False, True], ids=["f32", "autocast"])
@sdpa_kernel(SDPBackend.MATH)
def test_a_real_run_saves_the_same_storages_in_the_same_order(
    make: Callable[[], nn.Module], shape: tuple[int, ...], is_cast: bool
) -> None:
    model, x = make(), torch.randn(shape)
    least = 256
    with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
        trace = trace_model(model, x, least)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers(), x)}
    packed: list[torch.Tensor] = []  # it keeps them alive, so that no address is used twice
    unpacked: list[int] = []

    def pack(tensor: torch.Tensor) -> tuple[int, torch.Tensor]:
        storage = tensor.untyped_storage()
        is_managed = storage.data_ptr() not in own and storage.nbytes() >= least
        if is_managed:
            packed.append(tensor)
        return len(packed) - 1 if is_managed else -1, tensor

    def unpack(pair: tuple[int, torch.Tensor]) -> torch.Tensor:
        if pair[0] >= 0 and pair[0] not in unpacked:
            unpacked.append(pair[0])
        return pair[1]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
            y = model(x)
        y.sum().backward()
    orders = list(dict.fromkeys(tensor.untyped_storage().data_ptr() for tensor in packed))
    positions = [orders.index(tensor.untyped_storage().data_ptr()) for tensor in packed]
    expected = {pack: order for order, (_, packs) in enumerate(trace.saved.values()) for pack in packs}
    assert positions == [expected[pack] for pack in range(len(expected))]
    sizes = {orders.index(tensor.untyped_storage().data_ptr()): tensor.untyped_storage() for tensor in packed}
    assert [sizes[order].nbytes() for order in range(len(trace.saved))] == [
        trace.network.tensor(name).bytes for name in trace.saved
    ]
    assert unpacked == list(trace.unpacked_at)


def test_a_convolution_saves_its_input_once_it_has_run() -> None:
    # An operator of mucudnn does so, and PyTorch's own saves its input before.
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    trace = trace_model(model, torch.empty(2, 3, 8, 8), 256)
    assert [step.name for step in trace.network.steps][:4] == ["0", "1", "2", "loss"]
    assert trace.packed_at == (2, 3)


def test_steps_that_compute_a_tensor_again_begin_at_a_saved_tensor_or_an_input() -> None:
    trace = trace_model(small(), X, 256)
    assert trace.replays["2"] == (("1", "2"), ("0",))
    assert trace.replays["0"] == (("0",), ())
    saved = list(trace.saved)
    assert saved.index("5" if "5" in saved else "3") > saved.index("2")


def test_a_small_saved_tensor_stays_and_is_no_obstacle() -> None:
    class Gated(Joined):
        def between(self, x: torch.Tensor) -> torch.Tensor:
            return x * x.detach().mean((2, 3), keepdim=True).exp()

    steps, _ = trace_model(Gated(), X, 1024).replays["relu"]
    assert steps == ("norm", "add", "mul", "relu")


def test_a_modules_argument_is_held_until_the_module_returns() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3)
            self.body = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            x = self.body(x)  # this frame still holds the body's argument
            return x.sum((1, 2, 3))

    trace = trace_model(Model(), X, 256)
    names = [step.name for step in trace.network.steps]
    assert names[trace.held["stem"]] == "body.2"
    assert trace.network.lifetimes["stem"].last_forward_use == names.index("body.0")
    assert names[trace.held["body.0"]] == "body.1"


def test_an_activation_that_the_model_keeps_is_held_forever() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept = self.first(x)
            return self.second(self.kept).relu()

    trace = trace_model(Model(), X, 256)
    assert trace.held["first"] > len(trace.network.steps)
    assert trace.held["second"] < len(trace.network.steps)


class Joined(nn.Module):
    """A block with a shortcut, functions that are not modules, and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm, self.last = nn.BatchNorm2d(8), nn.Conv2d(16, 4, 3)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = torch.relu(self.between(self.norm(self.conv(x)) + x))
        return self.last(torch.cat([x, y], 1))


def test_operations_between_modules_are_computed_again() -> None:
    replays = trace_model(Joined(), X, 256).replays
    assert replays["relu"] == (("norm", "add", "relu"), ("stem", "conv"))
    assert replays["cat"] == (("cat",), ("stem", "relu"))


def test_a_block_is_computed_again_without_its_convolutions() -> None:
    trace = trace_model(nn.Sequential(nn.Conv2d(3, 16, 3), Block(16, 16, 1), nn.Conv2d(16, 4, 3)), X, 256)
    steps, _ = trace.replays[next(name for name in reversed(trace.saved) if name.startswith("1"))]
    assert not any(trace.network.step(name).kernels for name in steps)


@pytest.mark.parametrize("draw", [torch.rand_like, torch.nn.functional.dropout], ids=["rand", "dropout"])
def test_random_numbers_are_not_drawn_again(draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class Random(Joined):
        def between(self, x: torch.Tensor) -> torch.Tensor:
            return x + draw(x)

    trace = trace_model(Random(), X, 256)
    assert "relu" in trace.saved
    assert "relu" not in trace.replays
    assert "cat" in trace.replays
    inside = nn.Sequential(nn.Conv2d(3, 8, 3), Noise(draw), nn.Conv2d(8, 4, 3))
    assert not any(name.startswith("1") for name in trace_model(inside, X, 256).replays)


class Noise(nn.Module):
    """A module that draws random numbers in a function."""

    def __init__(self, draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.draw(x)).exp()
