"""Operators for convolutions whose sizes the compiler does not know: they choose in each call."""

from typing import Any

from torch import Tensor

from mucudnn.arrays.recent import Recent
from mucudnn.torch.choosing.sightings import Sightings
from mucudnn.torch.compiling import operators
from mucudnn.torch.compiling.comparison import choose
from mucudnn.torch.compiling.operators import (
    COMMON_ARGUMENTS,
    CompiledCall,
    EngineChoice,
    define_operator,
)
from mucudnn.torch.operators import passes
from mucudnn.torch.operators.options import TENSORS

_sightings = Sightings()
# The keys are a call and a number of threads. None in a tuple stands for PyTorch's operator.
_choices: Recent[Any, tuple[EngineChoice | None]] = Recent(2048)


def note_choice(call: CompiledCall, choice: EngineChoice) -> None:
    """Keep the engine's way to run a call, which was chosen while a graph was compiled."""
    _choices[call, passes.host_threads()] = (choice,)


def _run(call: CompiledCall, _: None, first: Tensor, second: Tensor, third: Any) -> Tensor:
    """Run a call in the engine or by PyTorch's operator, whichever was measured faster.

    PyTorch's operator also runs a call that has not come often enough to be measured, and one that has to
    wait because measurements have taken enough time. The filter of a forward pass tells layers with equal
    calls apart, which are counted separately. A backward pass is measured once its forward pass has been.
    """
    threads = passes.host_threads()
    known = _choices[call, threads]
    if known is None:
        _sightings.note_call()
        forward = call._replace(pass_="forward")
        if call.pass_ == "forward":
            is_due = _sightings.earns_measuring(forward, second.data_ptr())
        else:
            is_due = _choices[forward, threads] is not None
        if is_due and not _sightings.must_wait:
            with _sightings.deciding(is_paced=True):
                known = _choices[call, threads] = (choose(call, None),)
    choice = known[0] if known else None
    if choice is None:
        return passes.run_stock(call.pass_, first, second, third, call.options)
    return operators.run(call, choice, first, second, third)


OPERATORS = {
    pass_: define_operator(f"{pass_}_of_unknown_size", pass_, COMMON_ARGUMENTS, _run) for pass_ in TENSORS
}
