"""Operators for convolutions whose sizes the compiler does not know: they choose in each call."""

from typing import Any

from torch import Tensor

from mucudnn.arrays.recent import Recent
from mucudnn.torch.choosing.sightings import Sightings
from mucudnn.torch.compiling import operators
from mucudnn.torch.compiling.comparison import choose
from mucudnn.torch.compiling.operators import (
    COMMON_ARGUMENTS,
    TENSORS,
    CompiledCall,
    EngineChoice,
    define_operator,
)
from mucudnn.torch.operators import passes

_sightings = Sightings()
# The keys are a call and a number of threads. None in a tuple stands for PyTorch's operator.
_choices: Recent[Any, tuple[EngineChoice | None]] = Recent(2048)


def note_choice(call: CompiledCall, choice: EngineChoice) -> None:
    """Keep the engine's way to run a call, which was chosen while a graph was compiled."""
    _choices[call, passes.host_threads()] = (choice,)


def choose_in_call(call: CompiledCall, w: Tensor | None) -> EngineChoice | None:
    """Return the engine's way to run a call, or None to let PyTorch's operator run it.

    PyTorch's operator also runs a call that has not come often enough to be measured, and one that has to
    wait because measurements have taken enough time. `w` is the filter of a forward pass: it tells layers
    with equal calls apart, which are counted separately. A backward pass has None, and is measured once its
    forward pass has been.
    """
    threads = passes.host_threads()
    known = _choices[call, threads]
    if known is None:
        _sightings.note_call()
        forward = call._replace(pass_="forward")
        if w is None:
            is_due = _choices[forward, threads] is not None
        else:
            is_due = _sightings.earns_measuring(forward, w.data_ptr())
        if not is_due or _sightings.must_wait:
            return None
        with _sightings.deciding(is_paced=True):
            known = _choices[call, threads] = (choose(call, None),)
    return known[0]


def _run(call: CompiledCall, _: None, first: Tensor, second: Tensor, third: Any) -> Tensor:
    choice = choose_in_call(call, second if call.pass_ == "forward" else None)
    if choice is None:
        return passes.run_stock(call.pass_, first, second, third, call.options)
    return operators.run(call, choice, first, second, third)


OPERATORS = {
    pass_: define_operator(f"{pass_}_of_unknown_size", pass_, COMMON_ARGUMENTS, _run) for pass_ in TENSORS
}
