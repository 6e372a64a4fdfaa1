"""The models of the survey of divided models, with small sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.suites.devices.spatial_zoo import Entry, Mapped, decoder, net, smp, timm

_IMAGE, _VOLUME = (2, 3, 64, 64), (1, 1, 32, 32, 32)
_BLOCKS = {"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1}
_DOWN, _UP = ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2


def _temporal(diffusers: Any) -> nn.Module:
    vae = diffusers.AutoencoderKLTemporalDecoder(
        block_out_channels=(32, 32), down_block_types=_DOWN, layers_per_block=1
    )
    return Mapped(vae, lambda vae, z: vae.decode(z, num_frames=2))


def _allegro(diffusers: Any) -> nn.Module:
    vae = diffusers.AutoencoderKLAllegro(
        latent_channels=4, block_out_channels=(8, 8, 16, 16), layers_per_block=1, norm_num_groups=4
    )
    return Mapped(vae.decoder, lambda decoder, z: decoder(z))


def _encoded(name: str, **options: Any) -> Callable[[Any], nn.Module]:
    return lambda diffusers: Mapped(
        getattr(diffusers, name)(**options), lambda vae, x: vae.encode(x).latent_dist.mean
    )


def _unet(diffusers: Any) -> nn.Module:
    unet = diffusers.UNet2DConditionModel(
        **_BLOCKS,
        cross_attention_dim=8,
        attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    text = torch.randn(1, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return Mapped(unet, lambda unet, x: unet(x, 3, encoder_hidden_states=text.expand(x.shape[0], 5, 8)))


def _wan() -> dict[str, Any]:
    shape = {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 2, 2], "num_res_blocks": 1}
    scale = {"latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
    return {**shape, **scale, "temperal_downsample": [False, True]}


ZOO: dict[str, Entry] = {
    # video decoders
    "diffusers TemporalDecoder": Entry("diffusers", _temporal, (2, 4, 16, 12), 2, True),
    "diffusers Wan": decoder("AutoencoderKLWan", 4, (3, 12, 8), 3, **_wan()),
    "diffusers Wan, time": decoder("AutoencoderKLWan", 4, (3, 8, 12), 4, **_wan()),
    "diffusers HunyuanVideo": decoder(
        "AutoencoderKLHunyuanVideo",
        4,
        (3, 12, 8),
        3,
        latent_channels=4,
        block_out_channels=(8, 8, 16, 16),
        layers_per_block=1,
        norm_num_groups=4,
    ),
    "diffusers CogVideoX": decoder(
        "AutoencoderKLCogVideoX",
        4,
        (3, 12, 8),
        3,
        latent_channels=4,
        block_out_channels=(8, 8, 16, 16),
        layers_per_block=1,
        norm_num_groups=4,
    ),
    "diffusers LTX": decoder(
        "AutoencoderKLLTXVideo",
        8,
        (3, 8, 6),
        3,
        latent_channels=8,
        block_out_channels=(8, 16, 16, 16),
        decoder_block_out_channels=(8, 16, 16, 16),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
    ),
    "diffusers Mochi": decoder(
        "AutoencoderKLMochi",
        4,
        (3, 12, 8),
        3,
        latent_channels=4,
        encoder_block_out_channels=(32, 32, 32, 32),
        decoder_block_out_channels=(32, 32, 32, 32),
        layers_per_block=(1, 1, 1, 1, 1),
    ),
    "diffusers Allegro": Entry("diffusers", _allegro, (1, 4, 4, 12, 8), 3, True),
    "diffusers Magvit": decoder(
        "AutoencoderKLMagvit",
        4,
        (3, 12, 8),
        3,
        latent_channels=4,
        block_out_channels=(8, 8, 16, 16),
        layers_per_block=1,
        norm_num_groups=4,
    ),
    "diffusers Cosmos": decoder(
        "AutoencoderKLCosmos",
        4,
        (3, 12, 8),
        3,
        latent_channels=4,
        encoder_block_out_channels=(8, 8, 16, 16),
        decode_block_out_channels=(8, 8, 16, 16),
        num_layers=1,
        attention_resolutions=(4,),
        resolution=32,
        latents_mean=None,
        latents_std=None,
    ),
    "diffusers HunyuanVideo 1.5": decoder(
        "AutoencoderKLHunyuanVideo15",
        4,
        (2, 4, 4),
        3,
        latent_channels=4,
        block_out_channels=(32, 32, 32, 32, 32),
        layers_per_block=1,
    ),
    # image decoders and diffusion
    "diffusers KL decoder": decoder(
        "AutoencoderKL", 4, (16, 12), 2, False, down_block_types=_DOWN, up_block_types=_UP, **_BLOCKS
    ),
    "diffusers KL encoder": Entry(
        "diffusers",
        _encoded("AutoencoderKL", down_block_types=_DOWN, up_block_types=_UP, **_BLOCKS),
        (1, 3, 32, 24),
        2,
    ),
    "diffusers Wan encoder": Entry("diffusers", _encoded("AutoencoderKLWan", **_wan()), (1, 3, 5, 32, 24), 3),
    "diffusers DC-AE": decoder(
        "AutoencoderDC",
        8,
        (8, 6),
        2,
        False,
        latent_channels=8,
        attention_head_dim=8,
        encoder_block_types=("ResBlock", "ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 16, 16),
        decoder_block_out_channels=(8, 16, 16),
        encoder_layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        encoder_qkv_multiscales=((), (), (5,)),
        decoder_qkv_multiscales=((), (), (5,)),
    ),
    "diffusers Tiny": decoder(
        "AutoencoderTiny",
        4,
        (16, 12),
        2,
        False,
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
    ),
    "diffusers VQ": decoder(
        "VQModel",
        3,
        (16, 12),
        2,
        False,
        down_block_types=_DOWN,
        up_block_types=_UP,
        latent_channels=3,
        num_vq_embeddings=16,
        lookup_from_codebook=False,
        **_BLOCKS,
    ),
    "diffusers Asymmetric": decoder(
        "AsymmetricAutoencoderKL",
        4,
        (16, 12),
        2,
        False,
        down_block_types=_DOWN,
        down_block_out_channels=(8, 16),
        up_block_types=_UP,
        up_block_out_channels=(8, 16),
        layers_per_down_block=1,
        layers_per_up_block=1,
        norm_num_groups=4,
    ),
    "diffusers UNet 2-D": Entry(
        "diffusers",
        lambda d: Mapped(
            d.UNet2DModel(
                block_out_channels=(8, 16),
                norm_num_groups=4,
                layers_per_block=1,
                attention_head_dim=4,
                down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            ),
            lambda net, x: net(x, 3),
        ),
        (1, 3, 32, 24),
        2,
    ),
    "diffusers UNet with text": Entry("diffusers", _unet, (1, 4, 16, 12), 2),
    # volumes
    "MONAI UNet": net(
        "monai", "networks.nets.UNet", _VOLUME, 2, 3, 1, 2, (4, 8, 16), (2, 2), num_res_units=1
    ),
    "MONAI BasicUNet": net("monai", "networks.nets.BasicUNet", _VOLUME, 2, 3, 1, 2, (4, 4, 8, 8, 16, 4)),
    "MONAI BasicUNet++": net(
        "monai", "networks.nets.BasicUNetPlusPlus", _VOLUME, 2, 3, 1, 2, (4, 4, 8, 8, 16, 4)
    ),
    "MONAI DynUNet": net(
        "monai",
        "networks.nets.DynUNet",
        _VOLUME,
        2,
        3,
        1,
        2,
        [3] * 4,
        [1, 2, 2, 2],
        [2, 2, 2],
        filters=[4, 8, 8, 16],
    ),
    "MONAI DynUNet, deep supervision": net(
        "monai",
        "networks.nets.DynUNet",
        _VOLUME,
        2,
        3,
        1,
        2,
        [3] * 4,
        [1, 2, 2, 2],
        [2, 2, 2],
        filters=[4, 8, 8, 16],
        deep_supervision=True,
        deep_supr_num=2,
        res_block=True,
    ),
    "MONAI SegResNet": net("monai", "networks.nets.SegResNet", _VOLUME, 2, 3, 8, 1, 2),
    "MONAI SegResNetDS": net(
        "monai", "networks.nets.SegResNetDS", _VOLUME, 2, 3, 8, blocks_down=(1, 2, 2), dsdepth=2
    ),
    "MONAI VNet": net("monai", "networks.nets.VNet", _VOLUME, 2),
    "MONAI HighResNet": net("monai", "networks.nets.HighResNet", (1, 1, 16, 16, 16), 2, 3, 1, 2),
    "MONAI AttentionUnet": net(
        "monai", "networks.nets.AttentionUnet", _VOLUME, 2, 3, 1, 2, (4, 8, 16), (2, 2)
    ),
    "MONAI UNETR": net(
        "monai",
        "networks.nets.UNETR",
        _VOLUME,
        2,
        1,
        2,
        (32, 32, 32),
        feature_size=4,
        hidden_size=24,
        mlp_dim=32,
        num_heads=4,
    ),
    "MONAI SwinUNETR": net(
        "monai",
        "networks.nets.SwinUNETR",
        (1, 1, 64, 64, 64),
        2,
        1,
        2,
        feature_size=12,
        depths=(1, 1, 1, 1),
        num_heads=(1, 2, 2, 2),
    ),
    "MONAI AutoEncoder": net("monai", "networks.nets.AutoEncoder", _VOLUME, 2, 3, 1, 1, (4, 8), (2, 2)),
    "MONAI DenseNet121": net(
        "monai", "networks.nets.DenseNet121", (2, 1, 32, 32, 32), 2, 3, 1, 2, init_features=8, growth_rate=4
    ),
    "MONAI ResNet-18": net(
        "monai",
        "networks.nets.resnet18",
        (2, 1, 32, 32, 32),
        2,
        spatial_dims=3,
        n_input_channels=1,
        num_classes=2,
    ),
    "MONAI SEResNet-50": net(
        "monai",
        "networks.nets.SEResNet50",
        (2, 1, 32, 32, 32),
        2,
        spatial_dims=3,
        in_channels=1,
        num_classes=2,
    ),
    "MONAI EfficientNet": net(
        "monai",
        "networks.nets.EfficientNetBN",
        (2, 3, 64, 64),
        2,
        "efficientnet-b0",
        False,
        spatial_dims=2,
        num_classes=2,
    ),
    "MONAI FlexibleUNet": net(
        "monai", "networks.nets.FlexibleUNet", (1, 3, 64, 64), 2, 3, 2, "efficientnet-b0"
    ),
    "MONAI ViT": net(
        "monai",
        "networks.nets.ViT",
        _VOLUME,
        2,
        1,
        (32, 32, 32),
        (8, 8, 8),
        hidden_size=24,
        mlp_dim=32,
        num_layers=2,
        num_heads=4,
    ),
    "MONAI MedNeXt": net(
        "monai",
        "networks.nets.MedNeXt",
        _VOLUME,
        2,
        3,
        4,
        1,
        2,
        encoder_expansion_ratio=2,
        decoder_expansion_ratio=2,
        bottleneck_expansion_ratio=2,
    ),
    # segmentation
    **{
        f"smp {name}": smp(name)
        for name in (
            "Unet",
            "UnetPlusPlus",
            "FPN",
            "PSPNet",
            "DeepLabV3",
            "DeepLabV3Plus",
            "Linknet",
            "MAnet",
            "UPerNet",
        )
    },
    "smp PAN": smp("PAN", (2, 3, 128, 128)),
    "smp Segformer": smp("Segformer", encoder="mit_b0"),
    "smp Unet of EfficientNet": smp("Unet", encoder="efficientnet-b0"),
    "smp DPT": smp("DPT", (1, 3, 64, 64), "tu-vit_tiny_patch16_224", dynamic_img_size=True),
    # timm
    **{
        f"timm {name}": timm(name, _IMAGE, num_classes=4, **options)
        for name, options in {
            "resnet18": {},
            "resnest14d": {},
            "convnext_atto": {},
            "convnextv2_atto": {},
            "efficientnet_b0": {},
            "mobilenetv3_small_050": {},
            "regnety_002": {},
            "densenet121": {},
            "hrnet_w18_small": {},
            "nf_resnet26": {},
            "ghostnet_050": {},
            "poolformerv2_s12": {},
            "edgenext_xx_small": {},
            "mobilevitv2_050": {},
            "fastvit_t8": {},
            "resnetv2_50": {},
            "coat_tiny": {"img_size": 64},
            "repvgg_a0": {},
            "dla34": {},
            "vit_tiny_patch16_224": {"img_size": 64},
            "swin_tiny_patch4_window7_224": {"img_size": 64, "window_size": 4},
            "maxvit_tiny_tf_224": {"img_size": 64},
            "xcit_nano_12_p16_224": {"img_size": 64},
            "pvt_v2_b0": {},
        }.items()
    },
}
