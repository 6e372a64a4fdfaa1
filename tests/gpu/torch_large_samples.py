"""A PyTorch program that runs networks on one large sample, and compares their results with those in fp64.

`python tests/gpu/torch_large_samples.py DEVICE [CASE...]` prints a JSON object for each case.
"""

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn


def make_decoder() -> nn.Module:
    """Make the decoder of a small image autoencoder, as Stable Diffusion has one."""
    from diffusers import AutoencoderKL

    vae = AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 3, up_block_types=["UpDecoderBlock2D"] * 3,
        block_out_channels=(8, 16, 16), layers_per_block=1, norm_num_groups=4,
        mid_block_add_attention=False,  # no attention runs on the stand-in
    )  # fmt: skip
    return nn.Sequential(vae.post_quant_conv, vae.decoder)


def make_unet() -> nn.Module:
    """Make a small 3-D U-Net."""
    sys.path.append(str(Path(__file__).parents[2]))
    from examples.unet3d import UNet3d

    return UNet3d(width=4)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "AutoencoderKL decode": (make_decoder, (1, 4, 24, 24)),
    "3-D U-Net": (make_unet, (1, 1, 32, 32, 32)),
}


@torch.no_grad()
def run(name: str, device: str) -> dict[str, object]:
    """Run a network. Return the norm of its error, and that of its result in fp64."""
    make, shape = CASES[name]
    torch.manual_seed(1)
    model, x = make().eval(), torch.randn(shape)
    y: Tensor = copy.deepcopy(model).to(device)(x.to(device)).cpu().double()
    exact: Tensor = model.double()(x.double())
    return {
        "case": name,
        "finite": bool(y.isfinite().all()),
        "errors": [float((y - exact).norm())],
        "scales": [float(exact.norm())],
        "epsilon": torch.finfo(torch.float32).eps,
    }


if __name__ == "__main__":
    torch.backends.cudnn.allow_tf32 = False
    for case in sys.argv[2:] or CASES:
        print(json.dumps(run(case, sys.argv[1])), flush=True)
