"""Plans know what fused attention saves, and refuse recurrent layers, whose fused kernels differ."""

from collections.abc import Callable
from typing import Any

import pytest
from needs_torch import mt, torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from mucudnn.errors import UsageError
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.torch.tracing.trace import trace_model

nn = torch.nn
X = torch.empty(2, 64, 8, device="meta")
FIRST_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]


class Layer(nn.Module):
    """A linear layer, and a function of its result and a layer behind it."""

    def __init__(self, function: Callable[[Any, torch.Tensor], torch.Tensor], part: nn.Module) -> None:
        super().__init__()
        self.first, self.function, self.part = nn.Linear(8, 8), function, part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.part, self.first(x))


def attend(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.unflatten(2, (2, 4)).transpose(1, 2)
    return nn.functional.scaled_dot_product_attention(x, x, x)


def attend_without_gradient(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = attend(part, x).transpose(1, 2).flatten(2)
    return x * scale


ATTENTION = {
    "function": Layer(attend, nn.Identity()),
    "multi-head": Layer(lambda m, x: m(x, x, x, need_weights=False)[0], nn.MultiheadAttention(8, 2)),
    "encoder": nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "decoder": Layer(lambda m, x: m(x, x), nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)),
}
RECURRENT = {
    "lstm": Layer(lambda m, x: m(x)[0], nn.LSTM(8, 8)),
    "gru": Layer(lambda m, x: m(x)[0], nn.GRU(8, 8)),
    "rnn_tanh": Layer(lambda m, x: m(x)[0], nn.RNN(8, 8)),
    "lstm_cell": Layer(lambda m, x: m(x[0])[0], nn.LSTMCell(8, 8)),
    "gru_cell": Layer(lambda m, x: m(x[0]), nn.GRUCell(8, 8)),
}
PLAIN = {
    "attention with weights": Layer(lambda m, x: m(x, x, x)[0], nn.MultiheadAttention(8, 2)),
    "attention without a gradient": Layer(attend_without_gradient, nn.Identity()),
    "RMS norm": nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8)),
    "RNN cell": Layer(lambda m, x: m(x[0]), nn.RNNCell(8, 8)),
}


def plan(model: nn.Module) -> MemoryPlan:
    return mt.plan_memory(model, X, memory="1GiB", device="h200")


@pytest.mark.parametrize("kind", ATTENTION)
def test_attention_is_planned_as_the_first_kernel_runs_it_that_is_enabled(kind: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), ATTENTION[kind])
    for backends, is_plain in (FIRST_BACKENDS, False), (FIRST_BACKENDS[:1], True), ([SDPBackend.MATH], True):
        with sdpa_kernel(backends):  # flash attention has no kernel for float32
            steps = plan(model).traced.steps
        assert any("softmax" in step.name for step in steps) == is_plain


@pytest.mark.parametrize("function", RECURRENT)
def test_recurrent_layers_are_refused_by_name(function: str) -> None:
    with pytest.raises(UsageError, match=f"module 'part' calls {function}, .* plan the parts of the model"):
        plan(RECURRENT[function])


@pytest.mark.parametrize("kind", PLAIN)
def test_what_a_gpu_saves_alike_is_planned(kind: str) -> None:
    plan(PLAIN[kind])


def test_an_rms_norm_saves_its_input_and_one_statistic_of_each_row() -> None:
    trace = trace_model(PLAIN["RMS norm"], X, 256)
    assert [trace.network.tensor(name).bytes for name in trace.saved] == [4 * 128 * 8, 4 * 128]
    gradients = {tensor.name for tensor in trace.network.tensors if tensor.kind == "gradient"}
    assert gradients == {"0.weight.grad", "0.bias.grad", "1.weight.grad"}
