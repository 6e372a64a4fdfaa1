"""The survey of the models in `spatial_zoo`: each divided over ranks, and compared with the undivided model.

A model is right if result and gradients differ by at most 1e-11 in fp64, forward and backward. An error of
mucudnn counts as refused, and any other error as unclear.
"""

from __future__ import annotations

import argparse
import copy
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from bench.lib.ranks import launch
from bench.lib.record import Record
from bench.suites.devices.spatial_models import ZOO
from bench.suites.devices.spatial_zoo import make, ready

RIGHT = 1e-11
TIMEOUT = 300  # seconds a model
TOGETHER = 11  # models that a world of ranks compares, one after the other


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the number of ranks, and a choice of models."""
    parser.add_argument("--ranks", type=int, default=2, help="ranks that share each model (default: 2)")
    parser.add_argument("--models", nargs="+", metavar="WORD", help="models with a word in their name")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Compare the models that have one of the words in their name, and count the outcomes."""
    words, ranks = options.models, options.ranks
    names = [name for name in ZOO if not words or any(word.lower() in name.lower() for word in words)]
    counts: dict[str, list[str]] = {kind: [] for kind in ("right", "wrong", "refused", "unclear", "absent")}
    shares = {}
    for start in range(0, len(names), TOGETHER):
        for name, outcome in survey(names[start : start + TOGETHER], ranks).items():
            counts[outcome["outcome"]].append(name)
            shares[name] = outcome.get("share")
            metric = "share of the convolution work that ran divided"
            yield Record("survey", f"{name}, {ranks} ranks", metric, shares[name], "", outcome)
    for kind, cases in counts.items():
        details = {"of": len(names), "names": cases, "packages": versions()}
        yield Record("survey", f"{ranks} ranks", f"models {kind}", len(cases), "", details)
    for kind, is_video in (("video decoders", True), ("other models", False)):
        known = [s for name, s in shares.items() if s is not None and ZOO[name].is_video_decoder == is_video]
        yield Record("survey", kind, "least divided share", min(known, default=None), "", {"of": len(known)})


def versions() -> dict[str, str]:
    """Return the versions of the packages whose models are compared."""
    return {
        name: version(name) for name in sorted({entry.package for entry in ZOO.values()}) if find_spec(name)
    }


def survey(names: Sequence[str], ranks: int) -> dict[str, dict[str, Any]]:
    """Return the outcome of each model on a new world of ranks; the worst of all ranks counts.

    If the world fails, each model gets a world of its own.
    """
    each = launch(ranks, compare_models, list(names), timeout=TIMEOUT * len(names))
    failed = next((str(answer) for answer in each if isinstance(answer, Exception)), None)
    if failed is not None and len(names) > 1:
        return {name: outcome for model in names for name, outcome in survey([model], ranks).items()}
    if failed is not None:
        return {name: {"outcome": "unclear", "why": failed} for name in names}
    order = ("unclear", "refused", "wrong", "absent", "right")
    return {
        name: min((answer[name] for answer in each), key=lambda o: order.index(o["outcome"]))
        for name in names
    }


def compare_models(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the outcome of each model on this rank."""
    import torch.distributed as dist

    from mucudnn.torch import spatial

    mesh = spatial.init_mesh("cpu", part=dist.get_world_size(), timeout=120)
    return {name: compare_model(name, mesh) for name in names}


def compare_model(name: str, mesh: Any) -> dict[str, Any]:
    """Return the outcome of a model, its errors, its shares of divided work and its gatherings."""
    from mucudnn.errors import MucudnnError
    from mucudnn.torch import spatial

    ready()
    entry, started = ZOO[name], time.monotonic()
    try:
        model, x = make(entry)
    except ImportError as error:
        return {"outcome": "absent", "why": str(error)}
    expected = copy.deepcopy(model)
    whole, mine = x.clone().requires_grad_(), x.clone().requires_grad_()
    with precise():
        due = expected(whole)
        weights = due.detach().sin() + 0.1
        (due * weights).sum().backward()
    with warnings.catch_warnings(), spatial.report(model) as layers, precise():
        warnings.simplefilter("ignore")
        try:
            y = model(spatial.divide(mine, mesh, {entry.axis: "part"}))
            y = y.gather() if isinstance(y, spatial.Divided) else y
            (y * weights).sum().backward()
        except MucudnnError as error:
            return {"outcome": "refused", "why": f"{type(error).__name__}: {error}"}
        except Exception as error:
            return {"outcome": "unclear", "why": f"{type(error).__name__}: {error}", "at": _place(error)}
    errors = _relative(y, due), max(_relative(mine.grad, whole.grad), _gradients(model, expected))
    convolutions = [layer for layer in layers.layers if "Conv" in layer.kind]
    return {
        "outcome": "right" if max(errors) <= RIGHT else "wrong",
        "errors": errors,
        "share": layers.divided_share("Conv"),
        "divided": sum(layer.ranks > 1 for layer in convolutions),
        "convolutions": len(convolutions),
        "gathered": {f"{event.layer}, {event.function}": event.size for event in layers.gatherings},
        "seconds": time.monotonic() - started,
    }


def precise() -> Any:
    """Return a mode in which models that convert tensors to fp32 meanwhile leave them in fp64."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Precise(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.Tensor.float and args[0].dtype == torch.float64:
                return args[0]
            if function is torch.Tensor.to and args[0].dtype == torch.float64:
                args = tuple(torch.float64 if value == torch.float32 else value for value in args)
                kwargs = {
                    key: torch.float64 if value == torch.float32 else value
                    for key, value in (kwargs or {}).items()
                }
            return function(*args, **(kwargs or {}))

    return Precise()


def _place(error: BaseException) -> list[str]:
    """Return the last lines of code of an error."""
    return [
        f"{frame.filename}:{frame.lineno} {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)[-6:]
    ]


def _relative(a: Any, b: Any) -> float:
    if a is None or b is None:
        return 0.0 if a is b else float("inf")
    return float((a - b).detach().abs().max() / b.detach().abs().max().clamp(min=1e-3))


def _gradients(model: Any, expected: Any) -> float:
    """Return the largest error of the parameters' gradients, whose mean over the ranks counts."""
    import torch
    import torch.distributed as dist

    scale = max(float(q.grad.abs().max()) for q in expected.parameters() if q.grad is not None)
    worst = 0.0
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(grad)
        due = torch.zeros_like(q) if q.grad is None else q.grad
        worst = max(worst, float((grad / dist.get_world_size() - due).abs().max()) / scale)
    return worst
