"""Several devices: placements, pipelines, gathering of divided tensors, and the projection of a training."""
