"""One sample over several devices: tensors of which each rank has a part, for unchanged modules.

    mesh = spatial.init_mesh("cpu", data=2, depth=2)
    x = spatial.divide(volume, mesh, {2: "depth"})
    loss = model(x).mean()

Everything runs on torch.distributed: gloo on CPUs, NCCL on GPUs. The result is that of the undivided model.
"""

from mucudnn.torch.spatial import (  # noqa: F401 (their import fills the table of functions)
    convolution,
    dropout,
    elementwise,
    normalization,
    padding,
    pooling,
    resampling,
)
from mucudnn.torch.spatial.agreement import DivergedError
from mucudnn.torch.spatial.border import divide, from_local, init_mesh
from mucudnn.torch.spatial.choosing import Link
from mucudnn.torch.spatial.data import HyperslabDataset
from mucudnn.torch.spatial.divided import Divided
from mucudnn.torch.spatial.planning import follow, plan

__all__ = [
    "DivergedError",
    "Divided",
    "HyperslabDataset",
    "Link",
    "divide",
    "follow",
    "from_local",
    "init_mesh",
    "plan",
]
