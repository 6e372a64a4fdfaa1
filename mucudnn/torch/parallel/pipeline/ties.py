"""The tensors that a model holds in several places: every rank learns all of them before the first step."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from torch import Tensor, nn

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.pipeline.agreement import Agreement
from mucudnn.torch.parallel.pipeline.program import SplitStage

Place: TypeAlias = tuple[int, str]
"""A stage, and the name of a parameter or a buffer in it."""

Ties: TypeAlias = Mapping[Place, tuple[Place, ...]]
"""For each place of a tensor, all its places in order. A tensor with a single place may be missing."""


def agree_on_ties(stages: Sequence[nn.Module], agreement: Agreement) -> Ties:
    """Return the ties that any rank sees, the same on every rank.

    A rank sees a tie if the same tensor object is in two places. It looks at all stages, because a rank that
    holds one of the two places may not hold the other.

    Args:
        stages: all stages.
        agreement: the connection to the ranks that agree.

    Raises:
        UsageError: a parameter has places in two stages on the meta device only. The copies that the ranks
            make of it may be one weight or two, so the ranks cannot know whether to add their gradients.
    """
    gathered = agreement.gather(_see(stages)).values()
    ties: dict[Place, tuple[Place, ...]] = {}
    for real, _ in gathered:
        for places in real:
            _join(ties, places)
    for _, on_meta in gathered:
        for first, *others in on_meta:
            for other in others:
                if other[0] != first[0] and other not in ties.get(first, ()):
                    raise UsageError(
                        f"stages {first[0]} and {other[0]} share the parameter {first[1]} ({other[1]}) on "
                        "the meta device, and no rank that holds them shares it: let split cut the model, "
                        "or give each stage a parameter of its own"
                    )
    return ties


def _see(stages: Sequence[nn.Module]) -> tuple[list[list[Place]], list[list[Place]]]:
    """Return the places of each tensor: of real tensors, and of parameters on meta."""
    by_tensor: dict[Tensor, list[Place]] = {}
    by_name: dict[str, list[Place]] = {}  # in stages that `split` cut, a name stands for one tensor
    for stage, module in enumerate(stages):
        is_new = module not in stages[:stage]
        parameters = module.named_parameters(remove_duplicate=False)
        for name, tensor in (*parameters, *module.named_buffers(remove_duplicate=False)):
            # A module on meta in several stages may become a different module on each rank.
            if not tensor.is_meta or (is_new and isinstance(tensor, nn.Parameter)):
                by_tensor.setdefault(tensor, []).append((stage, name))
            if isinstance(module, SplitStage):
                by_name.setdefault(name, []).append((stage, name))
    on_meta = [places for tensor, places in by_tensor.items() if tensor.is_meta]
    real = [places for tensor, places in by_tensor.items() if not tensor.is_meta]
    return [*real, *by_name.values()], on_meta


def _join(ties: dict[Place, tuple[Place, ...]], places: Iterable[Place]) -> None:
    """Add a tie to others, and join those with which it has places in common."""
    joined = {known for place in places for known in ties.get(place, (place,))}
    for place in joined:
        ties[place] = tuple(sorted(joined))
