"""The Python of the guides about memory plans runs as it stands."""

from pathlib import Path

import pytest
from memory_steps import quick_rates
from needs_torch import torch
from pages import ON_A_DEVICE, run_python
from torch import nn

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("only_with_cuda")]


@pytest.mark.parametrize("page", ON_A_DEVICE)
def test_the_python_of_a_guide_runs(
    page: str, model: nn.Module, cache_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cache_path.parent)
    model.blocks = [model.second]
    x = torch.randn(2, 3, 128, 128).cuda()  # so large that the largest batch is soon found
    target = (torch.arange(len(x)) % 4).to(x.device)
    names = {
        "model": model,
        "x": x,
        "example_input": x,
        "batches": [(x, target)] * 2,
        "criterion": nn.CrossEntropyLoss(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }
    with quick_rates(), torch.compiler.set_stance("force_eager"):  # Inductor has no compiler for the stand-in
        run_python(page, names)
