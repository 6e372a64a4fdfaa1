"""`HyperslabDataset`: each rank reads its part of each sample of an HDF5 file."""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

from mucudnn.errors import MissingExtraError, MucudnnError, UsageError
from mucudnn.extras import install_command
from mucudnn.forks import no_fork
from mucudnn.torch.parallel.spatial.border import division_of, from_local
from mucudnn.torch.parallel.spatial.divided import Divided
from mucudnn.torch.parallel.spatial.exchange.sharing import place_in


class HyperslabDataset(Dataset[Any]):
    """The samples of an HDF5 dataset, of which each rank reads its own rows and no others.

    The dataset under `key` has the shape (samples, channels, ...). `axes` are the axes of a mini-batch, as in
    `divide`: axis 2 is the first spatial axis. An item is this rank's part of a sample, or a pair of the part
    and the whole row of the dataset `targets`. `divided` makes a divided tensor of a mini-batch of parts, and
    `sampler` gives all ranks that share a sample the same samples.

    Each process opens the file when it reads the first item, so workers of a DataLoader have their own files.

    Raises UsageError for an axis or key that does not fit, MissingExtraError without h5py, and MucudnnError
    for a file that cannot be read.
    """

    def __init__(
        self, path: Any, key: str, mesh: DeviceMesh, axes: Mapping[int, str], *, targets: str | None = None
    ) -> None:
        self.path, self.key, self.mesh, self.axes = os.fspath(path), key, mesh, dict(axes)
        self.targets = targets
        self._opened: tuple[int, Any] | None = None  # the process that opened the file, and the file
        self.shape = tuple(self._dataset(key).shape)
        cuts = [slice(None)] * (len(self.shape) - 1)
        for axis, owners in division_of(self.shape, mesh, self.axes).axes:
            own = owners.own(self.shape[axis])
            cuts[axis - 1] = slice(own.lo, own.hi)
        self._cuts = tuple(cuts)
        if targets is not None and len(self._dataset(targets)) != len(self):
            raise UsageError(f"{targets!r} has {len(self._dataset(targets))} rows for {len(self)} samples")
        self.close()

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no sample {index}: the file has {len(self)}")
        part = torch.from_numpy(self._dataset(self.key)[(index % len(self), *self._cuts)])
        if self.targets is None:
            return part
        return part, torch.as_tensor(self._dataset(self.targets)[index % len(self)])

    def divided(self, batch: Tensor, **options: Any) -> Divided:
        """Return the divided tensor of a mini-batch of parts; `options` are those of `from_local`."""
        return from_local(batch, (batch.size(0), *self.shape[1:]), self.mesh, self.axes, **options)

    def sampler(self, *, shuffle: bool = True, seed: int = 0) -> "DistributedSampler[Any]":
        """Return a sampler for a DataLoader that gives ranks the same samples if they share a sample."""
        others = set(self.mesh.mesh_dim_names or ()) - set(self.axes.values())
        place, replicas = place_in(self.mesh.get_group(name).group_name for name in sorted(others))
        return DistributedSampler(self, num_replicas=replicas, rank=place, shuffle=shuffle, seed=seed)

    def close(self) -> None:
        """Close the file, which the next item opens again."""
        if self._opened is not None and self._opened[0] == os.getpid():
            self._opened[1].close()
        self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def _dataset(self, key: str) -> Any:
        try:
            with no_fork:  # or a worker could wait forever for an import in another thread
                import h5py
        except ImportError:
            raise MissingExtraError(f"HyperslabDataset needs h5py: {install_command('spatial')}") from None
        if self._opened is None or self._opened[0] != os.getpid():
            try:
                self._opened = os.getpid(), h5py.File(self.path, "r")
            except OSError as error:
                raise MucudnnError(f"{self.path} cannot be read as HDF5: {error}") from None
        dataset = self._opened[1].get(key)
        if dataset is None or not getattr(dataset, "shape", None):
            raise UsageError(f"{self.path} has no dataset {key!r}: it has {', '.join(self._opened[1])}")
        return dataset
