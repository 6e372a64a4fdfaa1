"""Training steps in one setting, with losses, the gradient of the first step, times and peaks of memory."""

import copy
import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_networks import Task, make_task
from torch_settings import Setting

STEPS = 4
RATE = 0.01
_DTYPES = {"f64": torch.float64, "bf16": torch.bfloat16}  # the type of the model; others train in fp32
_SCALE = {"f16": 64.0}  # scales the loss, so that no gradient underflows

# A function that computes the gradients of all models and returns the loss.
Step = Callable[[], Tensor]


@dataclass
class Trained:
    """The outcome of training. Peaks are bytes of PyTorch's allocator beyond those before; 0 on the CPU."""

    losses: list[float]
    # The gradients of all parameters after the first step, as one vector on the CPU, in fp32 or fp64.
    gradient: Tensor
    first_ms: float  # the first step, which also measures and compiles
    step_ms: float  # the fastest of the other steps
    peak: int
    later_peak: int  # the peak of all steps but the first


def train(setting: Setting, device: str) -> Trained:
    """Train for a few steps. On the CPU the data is tiny, and there are no graphs and streams."""
    on_gpu = device == "cuda"
    _set_flags(setting)
    held = _fresh_memory() if on_gpu else 0
    task = _placed(make_task(setting.network, tiny=not on_gpu), setting, device)
    models, step = _step(task, setting, on_gpu)
    parameters = [p for model in models for p in model.parameters()]
    optimizer = torch.optim.SGD(parameters, RATE)
    losses: list[float] = []
    times: list[float] = []
    gradient, peaks = torch.empty(0), [0]
    for _ in range(STEPS):
        begin = time.perf_counter()
        losses.append(float(step()))
        _unscale(parameters, _SCALE.get(setting.arithmetic, 1.0))
        if not times:
            gradient = torch.stack([_flat(model) for model in models]).mean(0)
        optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
            peaks.append(torch.cuda.max_memory_allocated() - held)
            torch.cuda.reset_peak_memory_stats()
        times.append((time.perf_counter() - begin) * 1e3)
    return Trained(losses, gradient, times[0], min(times[1:]), max(peaks), max(peaks[-STEPS + 1 :]))


def _set_flags(setting: Setting) -> None:
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = setting.benchmark
    torch.backends.cudnn.allow_tf32 = setting.arithmetic == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = setting.arithmetic == "tf32"


def _fresh_memory() -> int:
    """Free the memory of the previous setting. Return the bytes that are still allocated."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _placed(task: Task, setting: Setting, device: str) -> Task:
    dtype = _DTYPES.get(setting.arithmetic, torch.float32)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    memory_format = formats[task.x.dim()] if setting.channels_last else torch.contiguous_format
    model = task.model.to(device, dtype)
    if setting.channels_last:
        model = model.to(memory_format=memory_format)
    x = task.x.to(device, dtype).contiguous(memory_format=memory_format)
    return Task(model, x, task.target.to(device))


def _step(task: Task, setting: Setting, on_gpu: bool) -> tuple[list[nn.Module], Step]:
    """Return the models that are trained, and a function that runs one step of them all."""
    if setting.mode == "streams":
        return _on_streams(task, setting, on_gpu)
    plain, models = _plain_step(task, setting), [task.model]
    if setting.mode == "graph" and on_gpu:
        return models, _captured(plain)
    if setting.mode == "compile":
        compiled = torch.compile(task.model, backend="inductor" if on_gpu else "aot_eager")
        return models, _plain_step(Task(compiled, task.x, task.target), setting)
    return models, plain


def _plain_step(task: Task, setting: Setting) -> Step:
    scale, kind = _SCALE.get(setting.arithmetic, 1.0), task.x.device.type

    def step() -> Tensor:
        task.model.zero_grad(set_to_none=True)
        # autocast would keep its cached casts after the capture that made them.
        casting: AbstractContextManager[object] = (
            torch.autocast(kind, torch.float16, cache_enabled=setting.mode != "graph")
            if setting.arithmetic == "f16"
            else nullcontext()
        )
        with casting:
            loss = task.loss()
        (loss * scale).backward()
        return loss.detach()

    return step


def _captured(plain: Step) -> Step:
    """Capture the step into a CUDA graph. It runs on a side stream before, as PyTorch requires."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            plain()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = plain()

    def step() -> Tensor:
        graph.replay()
        return loss

    return step


def _on_streams(task: Task, setting: Setting, on_gpu: bool) -> tuple[list[nn.Module], Step]:
    """Return two replicas with the same data, and a step that runs each on a stream of its own."""
    tasks = [task, Task(copy.deepcopy(task.model), task.x.clone(), task.target)]
    steps = [_plain_step(task, setting) for task in tasks]
    streams = [torch.cuda.Stream() for _ in tasks] if on_gpu else []

    def step() -> Tensor:
        if not streams:
            return torch.stack([replica_step() for replica_step in steps]).mean()
        losses = []
        for stream, replica_step in zip(streams, steps, strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                losses.append(replica_step())
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        return torch.stack(losses).mean()

    return [replica.model for replica in tasks], step


def _unscale(parameters: list[nn.Parameter], scale: float) -> None:
    for parameter in parameters:
        if scale != 1 and parameter.grad is not None:
            parameter.grad /= scale


def _flat(model: nn.Module) -> Tensor:
    gradients = [p.grad.detach().flatten() for p in model.parameters() if p.grad is not None]
    flat = torch.cat(gradients)
    return flat.to("cpu", torch.promote_types(flat.dtype, torch.float32))
