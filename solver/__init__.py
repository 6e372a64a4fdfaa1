"""The decisions: measured times and workspaces in, micro-batch sizes and algorithms out."""

from .configuration import Configuration, Infeasible, MicroConfiguration
from .division import Division, divide_workspace, solve_division
from .reuse import desirable_set, reuse_workspace

__all__ = [
    "Configuration",
    "Division",
    "Infeasible",
    "MicroConfiguration",
    "desirable_set",
    "divide_workspace",
    "reuse_workspace",
    "solve_division",
]
