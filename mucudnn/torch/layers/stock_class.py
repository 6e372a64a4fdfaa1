"""The short way of modules whose steps a verdict gives to PyTorch's own convolutions.

A converted module looks in each call for what was decided. In a network, whose data pushes the interpreter's
code out of the caches, that costs 5 to 24 µs on an EPYC (Zen 3). The short way costs 0.2 to 4 µs: see
`python -m bench run calls`.
"""

from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling


def class_of_short_way(divided: Any, stock: Any) -> type:
    """Return a subclass of `divided` whose modules run the convolution of PyTorch's class `stock` at once.

    Only plain tensors outside of compilers take the short way. Modules of further subclasses do not, such as
    parametrized ones. Copies and pickles of a module are of the class `divided`, since they find verdicts of
    their own.
    """
    run_stock = stock._conv_forward

    def conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        # Each further line here would cost every call.
        if not is_dynamo_compiling() and type(input) is Tensor and type(self) is short:
            return run_stock(self, input, weight, bias)
        return divided._conv_forward(self, input, weight, bias)

    def reduce(self: Any, protocol: Any) -> Any:
        # Only the older protocols may name another class than that of the module.
        make, (made, *more), *state = divided.__reduce_ex__(self, 1)
        return make, (divided if made is short else made, *more), *state

    methods = {"_conv_forward": conv_forward, "__reduce_ex__": reduce, "__module__": divided.__module__}
    short = type(divided.__name__, (divided,), methods)
    return short
