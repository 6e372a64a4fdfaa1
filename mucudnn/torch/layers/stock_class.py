"""The stock class of a converted module, which runs PyTorch's own convolution at once.

A converted module looks up its answer in each call. In a network, whose data pushes the interpreter's code
out of the caches, this costs 5 to 24 µs on an EPYC (Zen 3), but only 0.2 to 4 µs in the stock class: see
`python -m bench run calls`.
"""

from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling


def stock_class_of(converted: Any, own: Any) -> type:
    """Return a subclass of `converted` whose modules run the convolution of PyTorch's class `own` at once.

    Subclasses of tensors, compilers, and modules of further subclasses, such as parametrized modules, still
    get the converted module. Copies and pickles are `converted` modules, so they compare their own steps.
    """
    run_stock = own._conv_forward

    def conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        # Every line here adds to the cost of every call.
        if not is_dynamo_compiling() and type(input) is Tensor and type(self) is stock_class:
            return run_stock(self, input, weight, bias)
        return converted._conv_forward(self, input, weight, bias)

    def reduce(self: Any, protocol: Any) -> Any:
        # Only the older protocols may name a class other than the module's own.
        make, (made, *more), *state = converted.__reduce_ex__(self, 1)
        return make, (converted if made is stock_class else made, *more), *state

    methods = {"_conv_forward": conv_forward, "__reduce_ex__": reduce, "__module__": converted.__module__}
    stock_class = type(converted.__name__, (converted,), methods)
    return stock_class
