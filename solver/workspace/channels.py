"""Channel groups: the division of a kernel along its channels, where each group divides the mini-batch.

Two successive searches find the exact desirable set over both directions. A choice is a list of groups whose
channels add up to the kernel's, each with a configuration of the mini-batch. Its time is the sum over the
groups, and its workspace W is the maximum. If the configuration of each group is replaced by the fastest one
for the same channels within W, no time grows, and no workspace exceeds W. This configuration is in the
desirable set of its number of channels, so for each W a fastest choice consists of members of desirable sets.
The second search is the search for micro-batches, with channels instead of samples and members of desirable
sets instead of measured micro-configurations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .configuration import Configuration, MicroConfiguration, Sequential, Slices
from .reuse import desirable_set


@dataclass(frozen=True, slots=True)
class ChannelGroup:
    """A number of channels, and the configuration that computes them for the whole mini-batch.

    With `of_inputs` they are input channels of a filter gradient, which groups can also divide.

    Raises:
        ValueError: there is less than one channel; the message has the number.
    """

    channels: int
    configuration: Configuration
    of_inputs: bool = False

    def __post_init__(self) -> None:
        if self.channels < 1:
            raise ValueError(f"channels is {self.channels}, must be at least 1")

    @property
    def size(self) -> int:
        """The number of channels."""
        return self.channels

    @property
    def algorithm(self) -> str:
        """The text of the configuration, such as `(4*16 WINOGRAD_NONFUSED)`."""
        return f"inputs ({self.configuration})" if self.of_inputs else f"({self.configuration})"

    @property
    def time_ms(self) -> float:
        """Milliseconds of the configuration."""
        return self.configuration.time_ms

    @property
    def workspace(self) -> int:
        """Bytes that the configuration needs, with the copies of its parts."""
        return self.configuration.workspace


@dataclass(frozen=True, slots=True)
class ChannelGroups(Sequential[ChannelGroup]):
    """Groups of channels, computed one after another on one workspace, which add up to a kernel's channels.

    Raises:
        ValueError: there are no groups.
    """

    parts: tuple[ChannelGroup, ...]

    @property
    def channels(self) -> int:
        """The sum of the groups' channels."""
        return sum(group.channels for group in self.parts)

    @property
    def of_inputs(self) -> bool:
        """True if the groups divide the input channels of a filter gradient."""
        return self.parts[0].of_inputs

    @property
    def groups(self) -> tuple[tuple[int, Slices], ...]:
        """The channels and the slices of the mini-batch of each channel group, as engines take them."""
        return tuple((group.channels, group.configuration.slices) for group in self.parts)

    @property
    def slice_count(self) -> int:
        """The number of slices of the mini-batch in the channel group that has the most."""
        return max(len(group.configuration.parts) for group in self.parts)


def divide_channels(
    configurations: Mapping[int, Sequence[Configuration]],
    channels: int,
    *,
    limit: int | None = None,
    of_inputs: bool = False,
) -> list[ChannelGroups]:
    """Find the Pareto-optimal divisions of a kernel along channels and mini-batch, time against workspace.

    Args:
        configurations: the desirable set for each number of channels that was measured. A single group of
            all channels is the whole kernel.
        channels: the number of channels to divide, at least 1.
        limit: the most bytes of workspace; None for no limit.
        of_inputs: the channels are input channels of a filter gradient.

    Returns:
        The divisions, workspace ascending and time strictly descending; empty if nothing fits.

    Raises:
        ValueError: `channels` or one of the numbers is less than 1.
    """
    if channels < 1:
        raise ValueError(f"channels is {channels}, must be at least 1")
    groups = {
        (size, str(index)): ChannelGroup(size, configuration, of_inputs)
        for size, divided in configurations.items()
        for index, configuration in enumerate(divided)
    }
    unit = math.gcd(channels, *configurations)
    items = [
        MicroConfiguration(size // unit, index, group.time_ms, group.workspace)
        for (size, index), group in groups.items()
    ]
    return [
        ChannelGroups(tuple(groups[part.micro_batch * unit, part.algorithm] for part in divided.parts))
        for divided in desirable_set(items, channels // unit, limit=limit)
    ]
