"""One row of the table in a process of its own, printed as one line of JSON: ms by way, and reasons.

usage: python -m bench.suites.compilers.row NUMBER SECONDS
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

import mucudnn.torch
from bench.lib.process import keep_freed_memory
from bench.lib.vision import import_torchvision
from bench.suites.compilers.compilers import BOTH, COMPILED, CONVERTED, EAGER, ROWS, Row

Step = Callable[[], object]
_FEWEST = 5
_MOST_EARLY = 70  # steps in which a converted model compares whole steps


def main() -> None:
    """Build the ways, run them interleaved, and print the least ms of each."""
    row, seconds = ROWS[int(sys.argv[1])], float(sys.argv[2])
    keep_freed_memory()
    model = build(row.network).train(row.training)
    x = torch.randn(row.shape, generator=torch.Generator().manual_seed(1))
    steps, reasons = dict[str, Step](), dict[str, str]()
    for way, make in MAKERS.items():
        try:
            step = make(copy.deepcopy(model), x, row)
            if step is None:
                continue
            step()
            steps[way] = step
        except Exception as error:  # a missing package, or a network that a runtime cannot read
            reasons[way] = f"{type(error).__name__}: {error}".splitlines()[0]
    for way in (CONVERTED, BOTH):  # a compiled convolution of dynamic shape is decided when it runs
        begin = time.perf_counter()
        for _ in range(_MOST_EARLY):
            steps[way]()
            if time.perf_counter() - begin > seconds:
                break
    print(json.dumps([interleave(steps, seconds), reasons]))


def interleave(steps: dict[str, Step], seconds: float) -> dict[str, float]:
    """Return the least ms of each step, in rounds of all.

    Each step runs twice in a row and only the second counts, so that it finds its own data in the caches.
    """
    times: dict[str, list[float]] = {way: [] for way in steps}
    begin = time.perf_counter()
    while len(times[EAGER]) < _FEWEST or time.perf_counter() - begin < seconds:
        for way, step in steps.items():
            step()
            start = time.perf_counter()
            step()
            times[way].append((time.perf_counter() - start) * 1e3)
    return {way: min(values) for way, values in times.items()}


def build(name: str) -> nn.Module:
    """Build a network with random weights; MONAI's and torchvision's names for theirs."""
    torch.manual_seed(1)
    built: nn.Module
    if name.startswith("AutoencoderKL"):
        return build_decoder()
    if name not in ("dynunet3d", "unet2d", "unet3d"):
        built = import_torchvision().models.get_model(name)
        return built
    nets: Any = import_module("monai.networks.nets")
    if name == "dynunet3d":
        strides = [1, 2, 2, 2, 2]
        built = nets.DynUNet(3, 1, 3, [3] * 5, strides, strides[1:], norm_name="instance")
    else:
        axes = int(name[-2])
        built = nets.BasicUNet(spatial_dims=axes, in_channels=3 if axes == 2 else 1, out_channels=2)
    return built


def build_decoder() -> nn.Module:
    """Build a decoder of images as Stable Diffusion's, with a quarter of the channels."""
    import_torchvision()  # lets diffusers import torchvision
    diffusers: Any = import_module("diffusers")
    vae = diffusers.AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=(32, 64, 128, 128), layers_per_block=2,
    )  # fmt: skip
    return nn.Sequential(vae.post_quant_conv, vae.decoder)


def step_of(run: Callable[[Tensor], Any], x: Tensor, row: Row) -> Step:
    """Return a training step without an optimizer, or an inference."""

    def train() -> None:
        run(x).square().mean().backward()

    def infer() -> Any:
        with torch.no_grad():
            return run(x)

    return train if row.training else infer


def make_channels_last(model: nn.Module, x: Tensor, row: Row) -> Step:
    """Return a step in PyTorch's other memory format."""
    form: Any = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    stored: Any = model.to(memory_format=form)
    return step_of(stored, x.to(memory_format=form), row)


def make_onnxruntime(model: nn.Module, x: Tensor, row: Row) -> Step | None:
    """Return an inference by onnxruntime on as many threads as PyTorch."""
    if row.training:
        return None
    onnxruntime: Any = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        torch.onnx.export(model, (x,), path, dynamo=False)
        session = onnxruntime.InferenceSession(path, options)
    inputs = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, inputs)


def make_openvino(model: nn.Module, x: Tensor, row: Row) -> Step | None:
    """Return an inference by OpenVINO on as many threads as PyTorch."""
    if row.training:
        return None
    openvino: Any = import_module("openvino")
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    converted = openvino.convert_model(model, example_input=x, input=list(x.shape))
    request = openvino.compile_model(converted, "CPU", settings).create_infer_request()
    return lambda: request.infer([x.numpy()])


MAKERS: dict[str, Callable[[nn.Module, Tensor, Row], Step | None]] = {
    EAGER: step_of,
    "channels_last": make_channels_last,
    COMPILED: lambda model, x, row: step_of(torch.compile(model), x, row),
    "onnxruntime": make_onnxruntime,
    "OpenVINO": make_openvino,
    CONVERTED: lambda model, x, row: step_of(mucudnn.torch.convert(model), x, row),
    BOTH: lambda model, x, row: step_of(torch.compile(mucudnn.torch.convert(model)), x, row),
}


if __name__ == "__main__":
    main()
