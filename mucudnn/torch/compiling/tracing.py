"""The question of a converted module that is traced: whether its convolution is left to the pass."""

import torch

from mucudnn.arrays.call import limit_of
from mucudnn.forks import no_fork
from mucudnn.torch.compiling import private
from mucudnn.torch.operators.compiler_marks import keep_result


@keep_result
def is_left_to_inductor(workspace: str | None, device: torch.device) -> bool:
    """Return whether the convolution that is traced now is left to the pass, within this workspace limit.

    That is so if Inductor compiles the graph for the CPU. The first call sets the pass, after the user's own.
    """
    if device.type != "cpu" or private.inductor() is None or not private.is_traced_for_inductor():
        return False
    with no_fork:
        # Programs that compile nothing need neither the pass nor its operators.
        from mucudnn.torch.compiling.graph_pass import set_pass

        set_pass()
        private.limits_of_traces.setdefault(private.present_trace(), []).append(limit_of(workspace))
    return True
