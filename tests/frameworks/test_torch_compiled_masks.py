"""Compiled training steps of converted models write and read their masks as bytes, with the same bits."""

import copy
from typing import Any

import pytest
from needs_torch import mt, torch
from torch import nn

from mucudnn.torch.compiling import graph_pass, masks, private

_WRITTEN, _READ = "target=torch.ops.aten.view.dtype", "target=torch.ops.mucudnn_compiled.bytes_of.default"
needs_views = pytest.mark.skipif(
    not private.VIEWS_BYTES_AS_BOOLS, reason="before PyTorch 2.13 Inductor cannot view bytes as bools"
)
inductor_config = pytest.importorskip("torch._inductor.config")


@pytest.fixture
def graphs(fresh_compiler: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Leave all convolutions to Inductor. Return the text of each graph after mucudnn's pass."""
    texts, swap = list[str](), graph_pass._Graph.swap

    def noted(graph: Any) -> Any:
        texts.append(str(graph._graph))
        return swap(graph)

    monkeypatch.setattr(graph_pass, "choose", lambda *_: None)
    monkeypatch.setattr(graph_pass._Graph, "swap", noted)
    return texts


def gradients(size: int, *, dynamic: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.LeakyReLU(0.1),
        nn.MaxPool2d(2),
    )
    x = torch.randn(4, 3, size, size)
    results = []
    for run in (torch.compile(mt.convert(copy.deepcopy(model)), dynamic=dynamic), model):
        run(x).square().mean().backward()
        results.append([p.grad.clone() for p in run.parameters()])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)
    return results[0]


@needs_views
@pytest.mark.parametrize("dynamic", [False, True])
def test_large_masks_are_written_and_read_as_bytes_with_the_same_bits(
    dynamic: bool, graphs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_bytes = gradients(96, dynamic=dynamic)
    forward, backward = graphs
    assert forward.count(_WRITTEN) == backward.count(_READ) == 2
    torch.compiler.reset()
    monkeypatch.setattr(masks, "_FEWEST", 1 << 30)
    as_bools = gradients(96, dynamic=dynamic)
    assert _WRITTEN not in graphs[2]
    assert _READ not in graphs[3]
    assert all(map(torch.equal, as_bytes, as_bools))


def test_small_masks_stay_bools(graphs: list[str]) -> None:
    gradients(16)
    assert len(graphs) == 2
    assert not any(_WRITTEN in text or _READ in text for text in graphs)


@needs_views
def test_a_dropout_mask_is_read_as_bytes(graphs: list[str]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout(0.5))
    torch.compile(mt.convert(model))(torch.randn(4, 3, 96, 96)).sum().backward()
    assert _WRITTEN in graphs[0]
    assert _READ in graphs[1]


def test_masks_of_other_models_stay_inductors(graphs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "limits_of_traces", {})
    written = list[int]()
    monkeypatch.setattr(masks, "write_as_bytes", written.append)
    gradients_of = torch.compile(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2)))
    gradients_of(torch.randn(4, 3, 96, 96)).sum().backward()
    assert not written
    assert not graphs
