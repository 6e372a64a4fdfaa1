"""The decisions: from measured times and workspaces to micro-batch sizes and algorithms."""

from .channels import ChannelGroup, ChannelGroups, divide_channels
from .configuration import Configuration, Infeasible, MicroConfiguration, Slices
from .division import Shares, WorkspaceDivision, divide_workspace, solve_division
from .reuse import desirable_set, reuse_workspace
from .tiles import Tile, Tiling, tile_sample

__all__ = [
    "ChannelGroup",
    "ChannelGroups",
    "Configuration",
    "Infeasible",
    "MicroConfiguration",
    "Shares",
    "Slices",
    "Tile",
    "Tiling",
    "WorkspaceDivision",
    "desirable_set",
    "divide_channels",
    "divide_workspace",
    "reuse_workspace",
    "solve_division",
    "tile_sample",
]
