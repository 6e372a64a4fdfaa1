"""The networks that the memory planner reads: bundled ones, and files with a network's text form."""

from __future__ import annotations

from pathlib import Path

from mucudnn.errors import UsageError
from mucudnn.problems.bundled import NETWORKS, bundled_network
from mucudnn.problems.kernels import DEFAULT_BATCH
from mucudnn.problems.network import Network


def read_network(
    source: str, *, batch: int | None = None, data_type: str | None = None, layout: str | None = None
) -> Network:
    """Return the training step of a bundled network or of a network file.

    A file with forward steps alone gets its backward steps. Batch, data type and layout are those of a
    bundled network; a file has its own. Raises UsageError, MucudnnError.
    """
    if source in NETWORKS:
        forward = bundled_network(source, batch or DEFAULT_BATCH, data_type or "f32", layout or "nchw")
        return forward.with_backward()
    if not Path(source).is_file():
        raise UsageError(
            f"'{source}' is neither a network nor a file: give {', '.join(NETWORKS)}, or a file that "
            "Network.write wrote, such as one of mucudnn.torch.trace"
        )
    for flag, value in (("--batch", batch), ("--dtype", data_type), ("--layout", layout)):
        if value is not None:
            raise UsageError(f"{flag} is for bundled networks: the network of {source} has its own")
    network = Network.read(source)
    return network if network.turn < len(network.steps) else network.with_backward()
