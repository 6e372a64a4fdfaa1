"""The text form of a memory plan: a keyword and a value in JSON on each line.

A plan for less memory follows the plan that falls back on it, each with its own first and last line. Lines
that are empty or begin with # are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from mucudnn._native import parse_descriptor
from mucudnn.errors import NewerFileError, UsageError, shown
from mucudnn.input import check_version, parse_json
from mucudnn.plans.memory.parts import PlannedKernel, PlannedStep, PlannedTensor
from mucudnn.plans.plan import list_parts, make_configuration
from mucudnn.problems.kernels import Kernel
from mucudnn.solver.memory.copies import CopySteps, Link
from mucudnn.solver.memory.training import Replay, SavedTensor

VERSION = 1

_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("network", "device", "costs", "policy", "model"), (str,)),
    **dict.fromkeys(("batch", "memory", "floor", "peak", "host_bytes", "least_bytes"), (int,)),
    **dict.fromkeys(("average", "time_ms", "unlimited_ms", "exposed_ms", "bound_ms"), (int, float)),
    **dict.fromkeys(("inputs", "fetch_order"), (list,)),
    "sources": (dict,),
}
_ENTRIES = {**_TYPES, "is_cut": (bool,), "header": (dict,)}  # a plan need not have the last two
_PARTS = {"tensor": "tensors", "kernel": "kernels", "step": "steps"}


def format_memory_plan(plans: Iterable[Mapping[str, Any]]) -> str:
    """Return the text form of a plan and of the plans that follow it, each given by its fields."""
    return "".join(f"{line}\n" for fields in plans for line in _lines(fields))


def _lines(fields: Mapping[str, Any]) -> Iterator[str]:
    yield f"mucudnn memory plan {VERSION}"
    for name in _TYPES:
        yield f"{name} {_json(fields[name])}"
    yield f"link {_json(asdict(fields['link']))}"
    if fields["is_cut"]:
        yield "is_cut true"
    if fields["header"]:
        yield f"header {_json(fields['header'])}"
    for step in fields["steps"]:
        yield f"step {_json(asdict(step))}"
    for tensor in fields["tensors"]:
        yield f"tensor {_json(_without_defaults(tensor))}"
    for kernel in fields["kernels"]:
        yield f"kernel {_json(_kernel_fields(kernel))}"
    yield f"end {len(fields['steps'])}"


def parse_memory_plan(text: str) -> list[dict[str, Any]]:
    """Return the fields of a plan and of the plans that follow it.

    Raises UsageError with the number of the wrong line; NewerFileError.
    """
    plans: list[dict[str, Any]] = []
    fields: dict[str, Any] | None = None
    number = 0
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        try:
            if fields is None:
                check_version(entry, "memory plan", VERSION)
                fields = {part: [] for part in _PARTS.values()}
            elif entry.startswith("end "):
                plans.append(_finish(fields, entry))
                fields = None
            else:
                _read(fields, entry)
        except NewerFileError:
            raise
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"line {number}: {_explain(error)}") from None
    if fields is not None or not plans:
        raise UsageError(f"line {number + 1}: the text stops before the end of the memory plan")
    return plans


def _read(fields: dict[str, Any], entry: str) -> None:
    keyword, _, rest = entry.partition(" ")
    value = parse_json(rest)
    _json(value).encode()  # raises a ValueError for a value that could not be written, such as NaN
    if keyword in _PARTS:
        fields[_PARTS[keyword]].append(_MAKERS[keyword](value))
        return
    if keyword in fields:
        raise UsageError(f"{shown(keyword)} is given twice")
    if keyword == "link":
        fields[keyword] = Link(**value)
    elif keyword not in _ENTRIES:
        raise UsageError(f"{shown(keyword)} is not an entry of a memory plan")
    elif (
        not isinstance(value, _ENTRIES[keyword])
        or isinstance(value, bool) is not (keyword == "is_cut")
        or not _has_texts(value)
    ):
        raise UsageError(f"{keyword} cannot be {shown(value)}")
    else:
        fields[keyword] = tuple(value) if isinstance(value, list) else value


def _has_texts(value: object) -> bool:
    """Return whether all values of an object are texts; true of everything else."""
    return not isinstance(value, dict) or all(isinstance(text, str) for text in value.values())


def _finish(fields: dict[str, Any], entry: str) -> dict[str, Any]:
    missing = next((name for name in (*_TYPES, "link") if name not in fields), None)
    if missing is not None:
        raise UsageError(f"the memory plan has no {missing}")
    if entry != f"end {len(fields['steps'])}":
        raise UsageError(f"the memory plan should {entry} steps, it has {len(fields['steps'])}")
    return fields | {part: tuple(fields[part]) for part in _PARTS.values()}


def _explain(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _without_defaults(tensor: PlannedTensor) -> dict[str, Any]:
    defaults = PlannedTensor(tensor.name, (), "", 0, "keep", tensor.saved)
    needed = ("name", "shape", "data_type", "bytes", "choice", "saved")
    values = asdict(tensor)
    if tensor.saved.replay:
        del values["saved"]["replay"]["kernels"]  # their time and workspace are in the file
    return {
        name: value
        for name, value in values.items()
        if name in needed or getattr(tensor, name) != getattr(defaults, name)
    }


def _make_tensor(values: Mapping[str, Any]) -> PlannedTensor:
    saved = dict(values["saved"])
    if saved["replay"] is not None:
        saved["replay"] = Replay(**saved["replay"] | {"sources": tuple(saved["replay"]["sources"])})
    lists = {name: tuple(values[name]) for name in ("shape", "packs", "sources") if name in values}
    copies = CopySteps(**values.get("copies", {}))
    tensor = PlannedTensor(**{**values, **lists, "saved": SavedTensor(**saved), "copies": copies})
    if tensor.choice not in ("keep", "offload", "recompute"):
        raise UsageError(f"the choice for {tensor.name} cannot be {shown(tensor.choice)}")
    return tensor


def _kernel_fields(kernel: PlannedKernel) -> dict[str, Any]:
    return {
        "step": kernel.step,
        "module": kernel.module,
        "call": kernel.call,
        "pass": kernel.kernel.pass_,
        "problem": str(kernel.kernel.problem),
        "chosen": list_parts(kernel.chosen),
        "desirable": [list_parts(option) for option in kernel.desirable],
    }


def _make_kernel(values: Mapping[str, Any]) -> PlannedKernel:
    problem, _, _ = parse_descriptor(values["problem"])
    return PlannedKernel(
        values["step"],
        values["module"],
        values["call"],
        Kernel(problem, values["pass"], values["step"]),
        make_configuration(values["chosen"]),
        tuple(map(make_configuration, values["desirable"])),
    )


_MAKERS: dict[str, Callable[[Mapping[str, Any]], object]] = {
    "tensor": _make_tensor,
    "kernel": _make_kernel,
    "step": lambda values: PlannedStep(**values),
}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
