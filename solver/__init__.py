"""Decisions about micro-batch sizes, algorithms, memory and devices, from measured times and workspaces."""

from .workspace.channels import ChannelGroup, ChannelGroups, divide_channels
from .workspace.configuration import Configuration, Infeasible, MicroConfiguration, Slices, is_tiled, tile_of
from .workspace.division import Shares, WorkspaceDivision, divide_workspace, solve_division
from .workspace.reuse import desirable_set, reuse_workspace

__all__ = [
    "ChannelGroup",
    "ChannelGroups",
    "Configuration",
    "Infeasible",
    "MicroConfiguration",
    "Shares",
    "Slices",
    "WorkspaceDivision",
    "desirable_set",
    "divide_channels",
    "divide_workspace",
    "is_tiled",
    "reuse_workspace",
    "solve_division",
    "tile_of",
]
