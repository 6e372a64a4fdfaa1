"""Parts other than micro-batches: tiles of single samples, and groups of channels."""
