"""A long video that two processes decode together with Wan's decoder of diffusers, exactly.

The decoder works in tiles of time: it decodes one latent frame after the other, and each causal convolution
keeps its last two frames for the next tile. Within a tile each process has a part of the height, and so it
has of the frames that are kept. The weights are random and small. Run it with `pip install diffusers` and
`torchrun --nproc-per-node 2 examples/long_video.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

FRAMES, HEIGHT, WIDTH = 6, 12, 8  # the latents


def make_decoder() -> Any:
    """Return a small Wan autoencoder in fp64. Raises SystemExit without diffusers."""
    try:
        from diffusers import AutoencoderKLWan
    except ImportError:
        raise SystemExit("this example needs diffusers: pip install diffusers") from None
    torch.manual_seed(1)
    vae = AutoencoderKLWan(
        base_dim=8, z_dim=4, dim_mult=[1, 2, 2], num_res_blocks=1, temperal_downsample=[False, True],
        latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    )  # fmt: skip
    return vae.double().eval()


def run(mesh: Any) -> tuple[float, int, int]:
    """Return the error of the video, and the bytes of the largest activation undivided and of this rank."""
    from examples.spatial_common import difference
    from mucudnn.torch import spatial

    vae = make_decoder()
    z = torch.randn(1, 4, FRAMES, HEIGHT, WIDTH, dtype=torch.float64)
    largest = [0]

    def note(module: Any, args: Any, y: Any) -> None:
        local = getattr(y, "local", y)
        largest[-1] = max(largest[-1], local.numel() * local.element_size())

    for module in vae.decoder.modules():
        if isinstance(module, torch.nn.Conv3d):
            module.register_forward_hook(note)
    with torch.no_grad():
        expected = vae.decode(z).sample
        largest.append(0)
        with spatial.report(vae.decoder) as layers:
            video = vae.decode(spatial.divide(z, mesh, {3: "part"})).sample
    if mesh.get_rank() == 0:
        print(layers)
    return difference(video.gather(), expected), *largest


def main() -> None:
    """Decode divided and undivided, and compare."""
    from examples.spatial_common import report, start

    report("largest error of the video", *run(start()), limit=1e-12)


if __name__ == "__main__":
    import sys

    sys.path.append(str(Path(__file__).parents[1]))
    main()
