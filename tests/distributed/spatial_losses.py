"""Losses of segmentation, from PyTorch, MONAI and segmentation-models-pytorch, on divided predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from spatial_layers import divide, noted_gatherings
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

SAMPLES, CLASSES, ROWS, COLUMNS = 2, 3, 7, 6
Loss = Callable[[Any, Any], Any]


def pytorch_losses() -> dict[str, Loss]:
    """Return losses as training scripts write them, of logits and labels (N, 1, H, W)."""

    def dice(x: Any, labels: Any) -> Any:
        p, t = x.softmax(1), F.one_hot(labels[:, 0], CLASSES).movedim(-1, 1)
        return 1 - (2 * (p * t).sum((0, 2, 3)) / (p + t).sum((0, 2, 3))).mean()

    def focal(x: Any, labels: Any) -> Any:
        nll = F.cross_entropy(x, labels[:, 0], reduction="none")
        return ((1 - (-nll).exp()) ** 2 * nll).mean()

    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    return {
        "dice": dice,
        "focal": focal,
        "cross entropy with weights": lambda x, labels: F.cross_entropy(x, labels[:, 0], weights),
        "cross entropy, ignored": lambda x, labels: F.cross_entropy(x, labels[:, 0], ignore_index=1),
        "mean squares": lambda x, labels: F.mse_loss(x[:, :1], labels.to(x.dtype)),
        "negative log-likelihood": lambda x, labels: F.nll_loss(
            F.log_softmax(x, 1), labels[:, 0], weights, ignore_index=2
        ),
        "weighted binary": lambda x, labels: F.binary_cross_entropy_with_logits(
            x[:, :1], labels.clamp(max=1).to(x.dtype), pos_weight=weights[1]
        ),
        "binary of probabilities": lambda x, labels: F.binary_cross_entropy(
            x[:, :1].sigmoid(), labels.clamp(max=1).to(x.dtype)
        ),
    }


def monai_losses() -> dict[str, Loss]:
    """Return MONAI's losses of Dice, Focal and Tversky."""
    from monai import losses

    options = {"to_onehot_y": True, "softmax": True}
    return {
        "Dice": losses.DiceLoss(**options),
        "Dice, batch": losses.DiceLoss(**options, include_background=False, squared_pred=True, batch=True),
        "Dice, weights": losses.DiceLoss(**options, jaccard=True, weight=[0.2, 0.5, 0.3], reduction="sum"),
        "Dice, ignored": losses.DiceLoss(to_onehot_y=True, sigmoid=True, ignore_index=1),
        "generalized Dice": losses.GeneralizedDiceLoss(**options),
        "Focal, softmax": losses.FocalLoss(to_onehot_y=True, use_softmax=True, alpha=0.3, gamma=1.5),
        "Focal, weights": losses.FocalLoss(to_onehot_y=True, weight=[0.2, 0.5, 0.3], reduction="sum"),
        "Tversky": losses.TverskyLoss(**options),
    }


def smp_losses() -> dict[str, Loss]:
    """Return the losses of segmentation-models-pytorch."""
    from bench.lib.vision import import_torchvision

    import_torchvision()  # the package imports torchvision
    from segmentation_models_pytorch import losses

    def of_one_class(loss: Any) -> Loss:
        return lambda x, labels: loss(x[:, :1], labels.clamp(max=1).to(x.dtype))

    def of_classes(loss: Any) -> Loss:
        return lambda x, labels: loss(x, labels[:, 0])

    reduced = {"reduction": "sum", "reduced_threshold": 0.5}
    return {
        "Focal, reduced": of_one_class(losses.FocalLoss("binary", **reduced)),
        "Focal, binary, ignored": of_one_class(losses.FocalLoss("binary", ignore_index=1)),
        "Focal, ignored": of_classes(losses.FocalLoss("multiclass", ignore_index=2)),
        "Focal, normalized": of_classes(losses.FocalLoss("multiclass", normalized=True)),
        "Dice, binary": of_one_class(losses.DiceLoss("binary")),
        "Dice, classes": of_classes(losses.DiceLoss("multiclass")),
        "Tversky": of_classes(losses.TverskyLoss("multiclass")),
        "soft cross entropy": of_classes(losses.SoftCrossEntropyLoss(smooth_factor=0.1)),
    }


LOSSES = {"torch": pytorch_losses, "monai": monai_losses, "segmentation_models_pytorch": smp_losses}


def loss_errors(package: str) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return the largest error of each loss of a package and of its gradient, and what it gathered.

    The labels are whole tensors, and then divided as the predictions. fp64 stays fp64 where a loss converts
    to fp32.
    """
    from bench.suites.devices.spatial import Precise

    errors: dict[str, Any] = {}
    gathered: dict[str, list[str]] = {}
    generator = torch.Generator().manual_seed(4)
    x = 3 * torch.randn(SAMPLES, CLASSES, ROWS, COLUMNS, dtype=torch.float64, generator=generator)
    labels = torch.randint(CLASSES, (SAMPLES, 1, ROWS, COLUMNS), generator=generator)
    for name, loss in LOSSES[package]().items():
        whole, mine = x.clone().requires_grad_(), x.clone().requires_grad_()
        with Precise():
            due = loss(whole, labels)
        due.backward()
        gathered[name] = []
        for targets in labels, divide(labels):
            mine.grad = None
            with noted_gatherings() as noted, Precise():
                try:
                    value = loss(divide(mine), targets)
                except Exception as error:
                    errors[name] = f"{type(error).__name__}: {error}"
                    break
            gathered[name] += [event.function for event in noted]
            value.backward()
            scale = whole.grad.abs().max()
            error = max(
                float((value - due).detach().abs() / due.detach().abs()),
                float((mine.grad - whole.grad).abs().max() / scale),
            )
            errors[name] = max(error, errors.get(name, 0.0))
    return errors, gathered
