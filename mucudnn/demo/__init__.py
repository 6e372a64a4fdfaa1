"""The first minute with mucudnn: figures of this machine, in a training step or in single convolutions."""
