"""A PyTorch program of convolutions, each in three passes, compared with fp64 without cuDNN.

`python tests/gpu/torch_convolutions.py DEVICE [CASE...]` prints a JSON object for each case.
"""

import gc
import json
import os
import sys
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread

import torch
from torch import Tensor, nn

# Without a GPU the data is small, nothing is compiled for a GPU, and no graph is captured.
IS_SMALL = "TEST_GPU_ENGINE" in os.environ
PASSES = ("forward", "backward_data", "backward_filter")
_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}

Tensors = tuple[Tensor, ...]
Convolve = Callable[[Tensor, Tensor, Tensor], Tensors]


@dataclass(frozen=True)
class Case:
    """A convolution: arithmetic, sizes of x and w, and the way in which the program calls it."""

    arithmetic: str
    x: tuple[int, ...] = (16, 128, 56, 56)
    w: tuple[int, ...] = (128, 128, 3, 3)
    stride: int = 1
    groups: int = 1
    channels_last: bool = False
    mode: str = "eager"
    benchmark: bool = False


_VOLUME = {"x": (8, 32, 24, 24, 24), "w": (64, 32, 3, 3, 3)}

CASES = {
    "bf16": Case("bf16"),
    "f16": Case("f16"),
    "tf32": Case("tf32"),
    "fma": Case("fma"),
    "bf16 channels_last": Case("bf16", channels_last=True),
    "bf16 volume": Case("bf16", **_VOLUME),
    "f16 volume channels_last": Case("f16", **_VOLUME, channels_last=True),
    "bf16 strided": Case("bf16", stride=2),
    "f16 odd mini-batch": Case("f16", x=(11, 128, 56, 56)),
    "f16 odd samples": Case("f16", x=(7, 33, 113, 113), w=(128, 33, 3, 3)),  # samples are aligned to 2 bytes
    "bf16 one sample": Case("bf16", x=(1, 128, 56, 56)),
    "fma groups": Case("fma", w=(128, 64, 3, 3), groups=2),
    "bf16 threads": Case("bf16", mode="threads"),
    "bf16 graph": Case("bf16", mode="graph"),
    "bf16 beside a capture": Case("bf16", x=(12, 128, 56, 56), mode="beside"),
    "tf32 benchmark": Case("tf32", x=(16, 128, 44, 44), benchmark=True),
    "f16 compile": Case("f16", mode="compile"),
}
# A case that runs only by name, because it first takes most of the memory.
FULL = {"bf16 full": Case("bf16", x=(256, 128, 56, 56), mode="full")}


def run(name: str, case: Case, device: str) -> dict[str, object]:
    """Run a case. Return norms of errors, scales of rounding errors, and bytes of memory beyond tensors."""
    torch.backends.cudnn.benchmark = case.benchmark
    torch.backends.cudnn.allow_tf32 = case.arithmetic == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = False
    tensors = _tensors(name, case, device)
    convolve = _convolve(case)
    extra = _extra_memory(convolve, tensors) if device == "cuda" and case.mode == "eager" else 0
    results = _MODES[case.mode](convolve, tensors)
    finite = all(bool(result.isfinite().all()) for result in results)
    exact = _in_fp64(case, tensors)
    scales = _in_fp64(case, tuple(tensor.abs() for tensor in tensors))
    return {
        "case": name,
        "finite": finite,
        "errors": [float((y.double().to(e.device) - e).norm()) for y, e in zip(results, exact, strict=True)],
        "scales": [float(scale.norm()) for scale in scales],
        "epsilon": torch.finfo(tensors[0].dtype).eps,
        "extra": extra,
        "digest": zlib.crc32(b"".join(_bytes(result) for result in results)),
    }


def _tensors(name: str, case: Case, device: str) -> Tensors:
    """Return x, w and dy of a case."""
    torch.manual_seed(zlib.crc32(name.encode()))
    samples, channels, *spatial = case.x
    kernels, group_channels, *kernel = case.w
    if IS_SMALL:
        samples, channels, spatial = 3, channels // 16, [size // 4 for size in spatial]
        kernels, group_channels = kernels // 16, group_channels // 16
    y = [(size - 1) // case.stride + 1 for size in spatial]
    shapes = (
        (samples, channels, *spatial), (kernels, group_channels, *kernel), (samples, kernels, *y)
    )  # fmt: skip
    dtype = _DTYPES.get(case.arithmetic, torch.float32)
    memory_format = _FORMATS[len(case.x)] if case.channels_last else torch.contiguous_format
    made = (torch.randn(shape).to(device, dtype) for shape in shapes)
    tensors = tuple(tensor.contiguous(memory_format=memory_format) for tensor in made)
    if device == "cuda":
        torch.cuda.synchronize()  # other streams read the tensors
    return tensors


def _convolve(case: Case) -> Convolve:
    function = nn.functional.conv2d if len(case.x) == 4 else nn.functional.conv3d

    def convolve(x: Tensor, w: Tensor, dy: Tensor) -> Tensors:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = function(x, w, padding=1, stride=case.stride, groups=case.groups)
        return y.detach(), *torch.autograd.grad(y, (x, w), dy)

    return convolve


def _in_fp64(case: Case, tensors: Tensors) -> Tensors:
    with torch.backends.cudnn.flags(enabled=False):
        place = "cpu" if IS_SMALL else tensors[0].device
        return _convolve(case)(*(tensor.double().contiguous().to(place) for tensor in tensors))


def _extra_memory(convolve: Convolve, tensors: Tensors) -> int:
    """Return the peak of PyTorch's allocator in the first call, in bytes beyond the tensors."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results = convolve(*tensors)
    torch.cuda.synchronize()
    own = sum(result.untyped_storage().nbytes() for result in results)
    return torch.cuda.max_memory_allocated() - before - own


def _eager(convolve: Convolve, tensors: Tensors) -> Tensors:
    return convolve(*tensors)


def _compiled(convolve: Convolve, tensors: Tensors) -> Tensors:
    """Compile the forward pass with PyTorch's compiler, and run it. The gradients run eagerly."""
    backend = "aot_eager" if IS_SMALL else "inductor"
    compiled = torch.compile(lambda x, w, dy: (convolve(x, w, dy)[0] * 1,), backend=backend)
    return compiled(*tensors)[0], *convolve(*tensors)[1:]


def _in_threads(convolve: Convolve, tensors: Tensors) -> Tensors:
    """Convolve several times in two threads, each with its own stream. Return the results of the second."""
    results: dict[int, Tensors] = {}

    def work(number: int) -> None:
        stream = torch.cuda.Stream() if tensors[0].is_cuda else None
        with torch.cuda.stream(stream):
            for _ in range(5):
                results[number] = convolve(*tensors)
        if stream is not None:
            stream.synchronize()

    threads = [Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for first, second in zip(results[0], results[1], strict=True):
        assert (first - second).float().norm() <= 0.02 * second.float().norm()
    return results[1]


def _captured(convolve: Convolve, tensors: Tensors) -> Tensors:
    if IS_SMALL:
        return convolve(*tensors)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        convolve(*tensors)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = convolve(*tensors)
    for result in results:
        result.zero_()
    graph.replay()
    torch.cuda.synchronize()
    return results


def _beside_a_capture(convolve: Convolve, tensors: Tensors) -> Tensors:
    """Convolve for the first time while another thread captures a graph. Check that its graph is intact."""
    if IS_SMALL:
        return convolve(*tensors)
    begun, over = Event(), Event()
    graph, captured = torch.cuda.CUDAGraph(), torch.zeros(1000, device="cuda")

    def capture() -> None:
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                captured.add_(1)
                begun.set()
                over.wait()
                captured.add_(1)
        finally:
            begun.set()

    thread = Thread(target=capture)
    thread.start()
    begun.wait()
    try:
        results = convolve(*tensors)
    finally:
        over.set()
        thread.join()
    graph.replay()
    torch.cuda.synchronize()
    assert bool((captured == 2).all())
    return results


def _in_full_memory(convolve: Convolve, tensors: Tensors) -> Tensors:
    """Convolve with little more free memory than the results need. A small one loads kernels first."""
    small = tuple(tensor[:2].contiguous() for tensor in tensors)
    convolve(small[0], tensors[1], small[2])
    if IS_SMALL:
        return convolve(*tensors)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    needed = 2 * tensors[0].nbytes + 2**26
    taken = torch.empty(max(torch.cuda.mem_get_info()[0] - needed, 0), dtype=torch.uint8, device="cuda")
    results = convolve(*tensors)
    del taken
    return results


_MODES: dict[str, Callable[[Convolve, Tensors], Tensors]] = {
    "eager": _eager,
    "compile": _compiled,
    "threads": _in_threads,
    "graph": _captured,
    "beside": _beside_a_capture,
    "full": _in_full_memory,
}


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes()


def main(device: str, names: list[str]) -> None:
    """Print the outcome of each case, or its error."""
    cases = {**CASES, **FULL}
    for name in names or list(CASES):
        try:
            outcome = run(name, cases[name], device)
        except Exception:  # the other cases still run
            outcome = {"case": name, "error": traceback.format_exc()}
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
