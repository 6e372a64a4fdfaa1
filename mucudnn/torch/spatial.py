"""Spatial parallelism: unchanged modules run on tensors that are divided over ranks.

    mesh = spatial.init_mesh("cpu", data=2, depth=2)
    x = spatial.divide(volume, mesh, {2: "depth"})
    loss = model(x).mean()

Everything runs on torch.distributed, with gloo on CPUs and NCCL on GPUs. Results equal the undivided model's.
"""

from mucudnn.solver.devices.pipelines import PeerLink
from mucudnn.torch.parallel.spatial import gathering  # noqa: F401 (its import fills the table)
from mucudnn.torch.parallel.spatial.border import divide, from_local, init_mesh
from mucudnn.torch.parallel.spatial.data import HyperslabDataset
from mucudnn.torch.parallel.spatial.divided import Divided
from mucudnn.torch.parallel.spatial.exchange.agreement import DivergedError
from mucudnn.torch.parallel.spatial.functions import (  # noqa: F401 (their import fills the table)
    attention,
    contraction,
    convolution,
    dropout,
    elementwise,
    indexing,
    joining,
    losses,
    normalization,
    padding,
    pooling,
    resampling,
    sampling,
    shapes,
    statistics,
    unpooling,
    whole_axes,
)
from mucudnn.torch.parallel.spatial.planning.plan import plan
from mucudnn.torch.parallel.spatial.report import report

__all__ = [
    "DivergedError",
    "Divided",
    "HyperslabDataset",
    "PeerLink",
    "divide",
    "from_local",
    "init_mesh",
    "plan",
    "report",
]
