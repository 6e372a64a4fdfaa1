"""Video decoders of diffusers on several ranks: processor time and memory, relative to one process.

The weights are small and random. One rank decodes alone and all ranks decode together, alternately, so that
other programs on the machine disturb both alike.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.lib.ranks import values
from bench.lib.record import Record

WORLD, ROUNDS, LIMIT = 4, 5, "64MiB"
SETTLING = 7  # rounds in which models measure kernels and compare whole steps with PyTorch's
TIME, MEMORY = "decoder: seconds / one process", "decoder: bytes / one process"


def measure_decoders() -> Iterator[Record]:
    """Yield the processor time and the memory of each decoder on several ranks, over those of one process."""
    for name in ("Wan, 3 × 64 × 32", "HunyuanVideo, 3 × 48 × 24"):
        try:
            with TemporaryDirectory() as folder:  # choices of other versions must not count
                os.environ["MUCUDNN_CACHE"] = str(Path(folder) / "cache.sqlite")
                ranks = values(WORLD, decode, name)
        except RuntimeError as error:
            yield Record("spatial", name, TIME, None, "", {"why": str(error)})
            continue
        sums = [sum(each) for each in zip(*(rank["together"] for rank in ranks), strict=True)]
        ratios = [all_ranks / alone for all_ranks, alone in zip(sums, ranks[0]["alone"], strict=True)]
        details = {"seconds": sums, "of_one_process": ranks[0]["alone"]}
        median = statistics.median(ratios[SETTLING:])
        yield Record("spatial", f"{name}, {WORLD} ranks", TIME, median, "", details)
        whole, part = ranks[0]["whole_bytes"], max(rank["part_bytes"] for rank in ranks)
        details = {"bytes": part, "of_one_process": whole}
        yield Record("spatial", f"{name}, {WORLD} ranks", MEMORY, part / whole, "", details)


def make_decoder(name: str) -> tuple[Any, Any]:
    """Return an autoencoder in fp32 and latents, for a name that ends with their frames, height and width."""
    import torch

    diffusers: Any = import_module("diffusers")
    torch.manual_seed(1)
    if name.startswith("Wan"):
        vae = diffusers.AutoencoderKLWan(
            base_dim=16, z_dim=4, dim_mult=[1, 2, 2], num_res_blocks=1, temperal_downsample=[False, True],
            latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
        )  # fmt: skip
    else:
        vae = diffusers.AutoencoderKLHunyuanVideo(
            latent_channels=4, block_out_channels=(16, 16, 32, 32), layers_per_block=1, norm_num_groups=4
        )
    size = [int(word) for word in name.partition(", ")[2].split(" × ")]
    return vae.eval(), torch.randn(1, 4, *size)


def decode(name: str) -> dict[str, Any]:
    """Decode alone, on the first rank, and together; return seconds of each round, and the peaks of bytes."""
    import torch
    import torch.distributed as dist

    import mucudnn.torch
    from bench.suites.devices.spatial_zoo import ready
    from mucudnn.torch import spatial

    ready()
    warnings.simplefilter("ignore")
    mesh = spatial.init_mesh("cpu", timeout=300, part=dist.get_world_size())
    patient = dist.new_group(timeout=timedelta(seconds=300))
    # Not one model for both, because a converted model's choices depend on the steps that it has run.
    (alone, z), (together, _) = make_decoder(name), make_decoder(name)
    for vae in (alone, together):
        mucudnn.torch.convert(vae, workspace=LIMIT, budget="none")
    x = spatial.divide(z, mesh, {3: "part"})

    def seconds(vae: Any, latents: Any) -> float:
        dist.barrier(patient)
        before = time.process_time()
        vae.decode(latents)
        return time.process_time() - before

    costs: dict[str, Any] = {"alone": [], "together": []}
    with torch.no_grad():
        for _ in range(SETTLING + ROUNDS):
            if dist.get_rank() == 0:
                costs["alone"].append(seconds(alone, z))
            else:
                dist.barrier(patient)
            costs["together"].append(seconds(together, x))
        if dist.get_rank() == 0:
            costs["whole_bytes"] = peak_bytes(lambda: alone.decode(z))
        dist.barrier(patient)
        costs["part_bytes"] = peak_bytes(lambda: together.decode(x))
    return costs


def peak_bytes(run: Any) -> int:
    """Return the most bytes that PyTorch's allocator for the CPU holds during a run, without earlier ones."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    held = peak = 0
    profiler: Any = recorded.profiler
    events = profiler.kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
