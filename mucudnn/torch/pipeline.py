"""Training of a model that is cut into stages, with a stage in each process and exact gradients.

stages = split(model, stages=4, example_input=inputs[:8])  # or stages of your own
pipeline = BidirectionalPipeline(stages, mesh, loss, schedule="gems")
value = pipeline.step(inputs, targets)  # adds gradients to those of pipeline.parameters()
"""

from mucudnn.solver.devices.pipelines import PeerLink
from mucudnn.torch.parallel.pipeline.runtime import BidirectionalPipeline
from mucudnn.torch.parallel.pipeline.splitting import Split, split

__all__ = ["BidirectionalPipeline", "PeerLink", "Split", "split"]
