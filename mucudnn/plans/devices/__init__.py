"""Plans for several devices: placement, scaling and spatial division."""
