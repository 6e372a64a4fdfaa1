"""The bundled networks for the memory planner: files of layers that make a network for a mini-batch.

The first line of a file in `networks` has the shape of the input without the mini-batch. Each other line has
the name of a layer, its kind, which is a method of `Layers`, and the arguments. A layer reads the results
that `@` marks, or else that of the line before. The last result is the output.

Names that end in -2014 are these networks as the paper of vDNN counts their memory.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mucudnn.problems.layers import Layers
from mucudnn.problems.network import Network

_OF_2014 = "-2014"
_FOLDER = Path(__file__).parent / "networks"


def bundled_network(name: str, batch: int, data_type: str = "f32", layout: str = "nchw") -> Network:
    """Return the forward network of a name in `sources.TRAINABLE`.

    In a network of 2014, a max pooling saves its result and no indices.
    """
    text = (_FOLDER / f"{name.removesuffix(_OF_2014)}.layers").read_text("utf-8")
    (_, *shape), *lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    by_indices = not name.endswith(_OF_2014)
    layers = Layers(batch, *map(int, shape), data_type=data_type, layout=layout, pools_by_indices=by_indices)
    result = layers.input
    results = {"input": result}
    for layer, kind, *words in lines:
        reads = [results[word[1:]] for word in words if word.startswith("@")]
        sizes = [int(word) for word in words if word.isdecimal()]
        options = {key: int(value) for key, value in (w.split("=") for w in words if "=" in w)}
        result = results[layer] = getattr(layers, kind)(layer, *(reads or [result]), *sizes, **options)
    return layers.finish(result)


def training_step(name: str, batch: int, data_type: str = "f32", layout: str = "nchw") -> Network:
    """Return the training step of this network.

    In a network of 2014, the gradient of a ReLU that works in place is computed in place.
    """
    network = bundled_network(name, batch, data_type, layout).with_backward()
    if not name.endswith(_OF_2014):
        return network
    overwritten = {f"{t.in_place_of}.grad": f"{t.name}.grad" for t in network.tensors if t.in_place_of}
    tensors = [
        replace(tensor, in_place_of=overwritten.get(tensor.name, tensor.in_place_of))
        for tensor in network.tensors
    ]
    return Network(tuple(tensors), network.steps)
