"""Agreement on whole tensors: the ranks that share a sample draw the same random tensors, and compare others.

Ranks with different samples need not agree, and keep random numbers of their own.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from mucudnn.torch.parallel.digests import digest, tolerance
from mucudnn.torch.parallel.spatial.exchange.agreement import DivergedError
from mucudnn.torch.parallel.spatial.exchange.exchange import add_up
from mucudnn.torch.parallel.spatial.exchange.messages import described

_PARAMETER = "load the same weights on all of them, or wrap the model in DistributedDataParallel"
_TENSOR = "draw random numbers after divide, which sets PyTorch's generators to one state, or seed equally"
_compared: dict[frozenset[str], set[tuple[Any, ...]]] = {}  # groups -> function, shape, type
_compared_parameters: Any = WeakIdKeyDictionary()  # parameter -> groups


def from_first(mine: Tensor, groups: tuple[str, ...], device: torch.device) -> Tensor:
    """Return the first rank's row of numbers on all ranks of the groups. It travels on `device`."""
    return from_each(mine.to(device), groups)[0].to(mine.device)


def from_each(row: Tensor, groups: tuple[str, ...]) -> Tensor:
    """Return the rows of numbers of all ranks of the groups, in the order of their places."""
    place, count = place_in(groups)
    table = row.new_zeros(count, len(row))
    table[place] = row
    return add_up(table, groups)


def share_generators(groups: tuple[str, ...], device: torch.device) -> None:
    """Set PyTorch's generators of the CPU and of a device to the state that they have on the first rank.

    Whole tensors that are drawn later are then the same on all ranks of the groups. If the states differed,
    tensors that were drawn earlier may differ too, so `compare` compares them again.
    """
    if not any(groups) or device.type == "meta":
        return
    _share_state(torch.random, (), groups, device)
    if device.type != "cpu":
        _share_state(torch.get_device_module(device), (device,), groups, device)


def _share_state(module: Any, place: tuple[Any, ...], groups: tuple[str, ...], device: torch.device) -> None:
    state = module.get_rng_state(*place)
    if not _is_same(state.to(device), groups):
        module.set_rng_state(from_first(state, groups, device), *place)
        _compared.pop(frozenset(groups), None)


def compare(function: str, tensors: Iterable[Tensor], groups: tuple[str, ...]) -> None:
    """Raise DivergedError, on every rank, if the ranks of the groups pass different tensors to a function.

    Rounding errors are allowed. A parameter is compared once, any other tensor once for each function, shape
    and type, so later training steps send no messages for them.
    """
    names = frozenset(groups)
    known = _compared.setdefault(names, set())
    for x in tensors:
        if type(x) not in (Tensor, torch.nn.Parameter) or x.device.type == "meta":  # not fake tensors
            continue
        is_parameter, key = isinstance(x, torch.nn.Parameter), (function, x.shape, x.dtype)
        if _compared_parameters.get(x) == names if is_parameter else key in known:
            continue
        if not _is_same(x, groups):
            what, advice = ("parameter", _PARAMETER) if is_parameter else ("whole tensor", _TENSOR)
            raise DivergedError(
                f"the ranks do not agree about a {what} in {function}, here {described(x.shape, x.dtype)}, "
                f"although they share a sample: {advice}"
            )
        if is_parameter:
            _compared_parameters[x] = names
        else:
            known.add(key)


def _is_same(x: Tensor, groups: tuple[str, ...]) -> bool:
    """Return whether all ranks of the groups have the same tensor, apart from rounding errors."""
    with torch.no_grad(), _disable_current_modes():  # modes may count operators, or replay them
        digests, norms = from_each(digest(x.detach()), groups).unbind(1)
        return not bool((digests - digests[0]).abs().max() > tolerance(x.dtype) * norms.max())


def place_in(groups: Iterable[str]) -> tuple[int, int]:
    """Return the place of this rank among all ranks of the groups, and their number."""
    place, count = 0, 1
    for group in map(_resolve_process_group, filter(None, groups)):
        place, count = place * group.size() + dist.get_rank(group), count * group.size()
    return place, count
