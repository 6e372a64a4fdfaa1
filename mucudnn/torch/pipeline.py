"""Training of a model that is cut into stages, with a stage in each process and exact gradients.

pipeline = BidirectionalPipeline(stages, mesh, loss, schedule="gems")
value = pipeline.step(inputs, targets)  # adds gradients to those of pipeline.parameters()
"""

from mucudnn.solver.devices.pipelines import PeerLink
from mucudnn.torch.parallel.pipeline.runtime import BidirectionalPipeline

__all__ = ["BidirectionalPipeline", "PeerLink"]
