"""One huge sample: in tiles within a budget, in the approximate tiles that people use, and whole.

The networks have random weights. Memory is that of live tensors beside the parameters and the input. Whole
and other runs are interleaved, and times are the processor's.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.lib.record import Record
from bench.lib.vision import import_torchvision
from mucudnn.errors import MucudnnError
from mucudnn.measuring.modelled_device import find_device
from mucudnn.torch import stream
from mucudnn.torch.streaming.costs import Costs
from mucudnn.torch.streaming.graph import Sample
from mucudnn.torch.streaming.planning import Planner

RESUMES = True
WAYS = {"half": (0.5, "device"), "a quarter": (0.25, "auto")}
Run = Callable[[Tensor], Any]
Case = tuple[nn.Module, Tensor, dict[str, Run]]  # a module, its input, and approximate runs by name


class Live(TorchDispatchMode):
    """The peak of the bytes that operators have made in memory and that are alive."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()
        self.peak, self._alive = 0, dict[int, tuple[Any, int]]()
        self._known, self._kept = {each.untyped_storage()._cdata for each in known}, list(known)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self._alive = {key: its for key, its in self._alive.items() if not its[0].expired()}
        if function is torch.ops.aten.from_file.default:  # on the disk
            self._known.add(result.untyped_storage()._cdata)
            self._kept.append(result)
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and each.untyped_storage()._cdata not in self._known:
                storage = each.untyped_storage()
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return result


class _Resident:
    """The most bytes in memory, without pages of files, beyond those at the begin of a block, every 2 ms."""

    def __enter__(self) -> _Resident:
        self._first = self._most = self._now()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self.peak = self._most - self._first

    def _look(self) -> None:
        while not self._end.wait(0.002):
            self._most = max(self._most, self._now())

    @staticmethod
    def _now() -> int:
        with open("/proc/self/statm") as file:
            _, resident, of_files, *_ = map(int, file.read().split())
        return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")


def _ready(model: nn.Module) -> nn.Module:
    """Return a model in evaluation mode, without parameters that are zero."""
    for parameter in model.eval().parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.05)
    return model


def _autoencoder(channels: Sequence[int], groups: int) -> Any:
    diffusers: Any = import_module("diffusers")
    return diffusers.AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=4, down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, block_out_channels=channels, layers_per_block=2,
        norm_num_groups=groups, sample_size=256, use_post_quant_conv=False,
    )  # fmt: skip


def _decoder(latents: int) -> Case:
    model = _ready(_autoencoder((32, 64, 128, 128), 8))
    tiled = {"diffusers' enable_tiling": lambda z: model.tiled_decode(z).sample}
    return model.decoder, torch.randn(1, 4, latents, latents), tiled


def _video(side: int) -> Case:
    diffusers: Any = import_module("diffusers")
    model = diffusers.AutoencoderKLCogVideoX(
        block_out_channels=(32, 32, 32, 64), layers_per_block=1, norm_num_groups=8, latent_channels=16
    )
    model.forward = lambda z: model.decode(z).sample
    return _ready(model), torch.randn(1, 16, 2, side, side), {}


def _volume(name: str, side: int) -> Case:
    nets, inferers = import_module("monai.networks.nets"), import_module("monai.inferers")
    if name == "SegResNet":
        model = nets.SegResNet(3, 16, 1, 2)
    else:
        model = nets.DynUNet(
            3, 1, 2, [3] * 5, [1, 2, 2, 2, 2], [2] * 4, filters=[16, 32, 64, 96, 96],
            norm_name=("INSTANCE", {"affine": True}),
        )  # fmt: skip
    window = inferers.SlidingWindowInferer((side // 2,) * 3, overlap=0.25, mode="gaussian")
    windowed = {"MONAI's sliding window": lambda x: window(x, model)}
    return _ready(model), torch.randn(1, 1, side, side, side), windowed


def _resnet(side: int) -> Case:
    import_torchvision()
    m = import_module("torchvision.models").resnet50(weights=None)
    body = nn.Sequential(m.conv1, m.bn1, m.relu, m.maxpool, m.layer1, m.layer2, m.layer3, m.layer4)
    return _ready(body), torch.randn(1, 3, side, side), {}


CASES: dict[str, Callable[[], Case]] = {
    "SegResNet, 128³": lambda: _volume("SegResNet", 128),
    "DynUNet, 128³": lambda: _volume("DynUNet", 128),
    "decoder of AutoencoderKL, 32 to 128 channels, 128² latents": lambda: _decoder(128),
    "decoder of CogVideoX, 32 to 64 channels, 2 × 32² latents": lambda: _video(32),
    "ResNet-50 without its head, 4096²": lambda: _resnet(4096),
    "ResNet-50 without its head, 8192²": lambda: _resnet(8192),
    "decoder of AutoencoderKL, 32 to 128 channels, 256² latents": lambda: _decoder(256),
}
DEVICES = "rtx4090", "h200"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the rounds of interleaved runs."""
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="a text in the names of the samples")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield all figures."""
    import_torchvision()  # before diffusers looks for it
    for name, make in CASES.items():
        if options.only in name and f"{name}: whole" not in options.done:
            torch.manual_seed(0)
            yield from _compare(name, *make(), options.rounds)
    if "modelled".startswith(options.only):
        yield from _model()


@torch.no_grad()
def _compare(name: str, model: nn.Module, x: Tensor, others: dict[str, Run], rounds: int) -> Iterator[Record]:
    known = [*model.parameters(), *model.buffers(), x]
    stock, whole, resident = _watch(model, x, known)
    runs: dict[str, Run] = dict(others)
    details: dict[str, dict[str, Any]] = {each: {} for each in runs}
    for way, (part, store) in WAYS.items():
        start = time.perf_counter()
        try:
            streamed = stream(model, x, memory=int(part * whole), store=store)
        except MucudnnError as error:
            yield Record("streaming", f"{name}: {way}", "plan", None, "", {"why": str(error)})
            continue
        plan, seconds = streamed.plan, time.perf_counter() - start
        runs[way] = streamed
        details[way] = {"planned": plan.peak, "planning_s": seconds, "work": plan.work, "store": plan.store}
    for way, run in runs.items():
        result, peak, its_resident = _watch(run, x, known)
        difference, scale = (result - stock).abs(), float(stock.abs().max())
        psnr = 20 * math.log10(scale / max(float(difference.double().square().mean().sqrt()), 1e-300))
        details[way] |= {
            "live": peak, "resident": its_resident, "error": float(difference.max()) / scale, "psnr": psnr
        }  # fmt: skip
        del result, difference
    times = {way: list[float]() for way in ("whole", *runs)}
    for _ in range(rounds):
        for way, run in {"whole": model, **runs}.items():
            start = time.process_time()
            run(x)
            times[way].append(time.process_time() - start)
    for way in runs:
        pairs = zip(times[way], times["whole"], strict=True)
        ratio = statistics.median(own / its for own, its in pairs)
        case = f"{name}: {way}"
        yield Record("streaming", case, "memory", details[way]["live"] / whole, "x", details[way])
        yield Record("streaming", case, "time", ratio, "x", {"seconds": times[way]})
    figures = {"resident": resident, "seconds": times["whole"]}
    yield Record("streaming", f"{name}: whole", "MiB", whole / 2**20, "MiB", figures)


def _watch(run: Run, x: Tensor, known: Sequence[Tensor]) -> tuple[Tensor, int, int]:
    """Return the first result of a run, the peak of live tensors, and that of resident memory, in bytes."""
    with Live(known) as live, _Resident() as resident:
        result = run(x)
    return tree_leaves(result)[0], live.peak, resident.peak


def _model() -> Iterator[Record]:
    """Yield modelled times for the decoder of Stable Diffusion, of full width, in fp16."""
    decoder = _autoencoder((128, 256, 512, 512), 32).decoder.half().eval()
    for latents in (128, 256):
        sample = Sample(decoder, (torch.zeros(1, 4, latents, latents, dtype=torch.float16),), {})
        for name in DEVICES:
            planner = Planner(sample, Costs(find_device(name)), training=False)
            free = planner.fastest(2.0**50, away=False)
            assert free is not None
            for part, away in ((0.5, False), (0.25, False), (0.25, True), (0.125, True)):
                case = f"{latents}² latents on {name}, {part:g} of {free.peak / 2**30:.1f} GiB"
                case += ", stored on the host" if away else ""
                found = planner.fastest(part * free.peak, away=away)
                ratio = None if found is None else found.ms / free.ms
                details = {"ms": free.ms} if found is not None else {"why": "no plan"}
                yield Record(
                    "modelled_streaming", case, "time over that without a limit", ratio, "x", details
                )
