"""The decisions: from measured times and workspaces to micro-batch sizes and algorithms."""

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
