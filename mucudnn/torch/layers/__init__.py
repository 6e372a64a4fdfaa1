"""Functions and layers that divide, and the conversion of a model's layers."""
