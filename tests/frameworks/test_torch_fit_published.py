"""`will_it_fit` beside batches with which timm trained its networks on an RTX 3090.

timm's benchmark halves a batch that does not fit, with one step in between: 512, 384, 256, 192, 128 and so
on. So the batch that it publishes fits the GPU, and the next larger one of that row does not. The figures are
those of `results/benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv` in huggingface/pytorch-image-models on
GitHub: SGD with momentum, autocast to float16, and gradients that stay in memory between steps.
"""

from importlib import import_module

import pytest
from needs_torch import mt, torch
from programs import imported, imported_torchvision

from mucudnn.plans.memory.fit import Fit

FREE = "23GiB"  # a card has 24 GiB
PUBLISHED = {
    "resnet101": (256, 384, 224),
    "convnext_tiny": (256, 384, 224),
    "convnext_base": (128, 192, 224),
    "vit_base_patch16_224": (192, 256, 224),
    "swin_tiny_patch4_window7_224": (256, 384, 224),
    "densenet201": (192, 256, 224),
    "efficientnet_b2": (256, 384, 256),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_batch_fits_and_the_next_one_does_not(name: str) -> None:
    imported_torchvision()  # timm imports it
    timm = imported("timm")
    import_module("timm.layers").set_fused_attn(False)  # PyTorch 1.12 had none
    fits, too_large, size = PUBLISHED[name]
    with torch.device("meta"):
        model = timm.create_model(name).train()

    def need(batch: int) -> Fit:
        return mt.will_it_fit(
            model,
            torch.empty(batch, 3, size, size, device="meta"),
            memory=FREE,
            device="rtx4090",
            optimizer="momentum",
            autocast=torch.float16,
            accumulate=True,
        )

    assert need(fits).fits
    assert not need(too_large).fits


@pytest.mark.parametrize(("side", "allocated"), [(512, 1.274), (2048, 16.754)])
def test_a_decoder_takes_what_was_published(side: int, allocated: float) -> None:
    # Qwen-Image's autoencoder in fp16 on an RTX 4090, from invoke-ai/InvokeAI#9305 on GitHub.
    diffusers, half = imported("diffusers"), torch.float16
    with torch.device("meta"):
        vae = diffusers.AutoencoderKLQwenImage().to(half).eval()
    vae.forward = vae.decode
    z = torch.empty(1, 16, 1, side // 8, side // 8, device="meta", dtype=half)
    parts = mt.will_it_fit(vae, z, training=False, device="rtx4090").parts
    needed = sum(parts[kind] for kind in ("parameters", "input", "activations", "workspace"))
    assert needed / 2**30 == pytest.approx(allocated, rel=0.005)
