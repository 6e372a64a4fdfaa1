"""A pipeline evaluates, scales, averages and saves weights as scripts do with the undivided model."""

from __future__ import annotations

from pathlib import Path

import needs_torch  # noqa: F401
import pipeline_training as training
import pytest
import torch
import worlds
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save


@pytest.mark.parametrize(
    ("schedule", "depth"), [("gems", 3), ("1f1b", 2), ("1f1b, recompute", 3), ("bidirectional", 2)]
)
def test_a_script_with_dicts_uneven_batches_accumulation_clipping_schedules_and_averages(
    schedule: str, depth: int
) -> None:
    worlds.run(depth, training.whole_training, schedule, depth)


def test_all_ranks_skip_a_step_if_the_gradients_of_one_rank_overflow() -> None:
    for scales, changed, distances in worlds.run(2, training.scale_together):
        assert scales == [1024.0, 512.0, 512.0, 1024.0]
        assert changed == [True, False, True, True]
        assert max(distances) <= 1e-14


@pytest.mark.parametrize("schedule", ["gems", "1f1b"])
def test_an_evaluation_has_the_outputs_of_the_undivided_model_and_changes_nothing(
    schedule: str,
) -> None:
    first, *_, last = worlds.run(3, training.evaluate, schedule, 3)
    assert all(last)
    assert not any(first)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("fails", "ZeroDivisionError: the last stage divides by zero"),
        ("scalar", "the output of stage 1 has no samples: its dimensions are ()"),
    ],
)
def test_an_error_in_an_evaluation_reaches_all_ranks(kind: str, message: str) -> None:
    for text in worlds.run(2, training.evaluation_error, kind):
        assert message in text


@pytest.mark.parametrize("schedule", ["gems", "1f1b"])
def test_a_distributed_checkpoint_is_that_of_the_whole_model(schedule: str, tmp_path: Path) -> None:
    names = worlds.run(3, training.save_and_load, str(tmp_path / "saved"), schedule, 3)
    dcp_to_torch_save(tmp_path / "saved", tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt")["model"]
    expected = nn.Sequential(*training.make_stages(3)).state_dict()
    assert set(whole) == set(expected) == set().union(*names)
    assert all(whole[name].shape == tensor.shape for name, tensor in expected.items())


def test_a_file_of_the_undivided_model_is_loaded_and_a_wrong_file_is_an_error_everywhere(
    tmp_path: Path,
) -> None:
    torch.save(nn.Sequential(*training.make_stages(2)).state_dict(), tmp_path / "model.pt")
    for unknown, missing in worlds.run(2, training.load_whole, str(tmp_path / "model.pt"), 2):
        assert "the state dict has 1 names that are not in the model, such as 9.inner.weight" in unknown
        assert "Missing key(s) in state_dict" in missing
