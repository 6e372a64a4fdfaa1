"""The backward steps of a network."""

from __future__ import annotations

from dataclasses import replace

import pytest
from networks import STEPS, TENSORS, TRAINING, Builder, bytes_of, names

from mucudnn._native import Problem
from mucudnn.errors import UsageError
from mucudnn.plans.memory.training_step import count_resident
from mucudnn.problems.bundled import bundled_network
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.network import Network
from mucudnn.problems.steps import Step, Tensor


def test_a_training_step_runs_the_backward_steps_in_reverse_order() -> None:
    assert TRAINING.steps[:3] == STEPS
    assert TRAINING.turn == 4
    assert [(step.name, step.reads, step.writes, step.backward_of) for step in TRAINING.steps[3:]] == [
        ("y.grad", ("y",), ("y.grad",), ""),
        ("pool.backward", ("y.grad", "relu", "indices"), ("relu.grad",), "pool"),
        ("relu.backward", ("relu.grad", "relu"), ("conv.grad",), "relu"),
        ("conv.backward", ("conv.grad", "x", "w"), ("w.grad",), "conv"),
    ]
    assert TRAINING.tensor("w.grad") == Tensor("w.grad", (4, 3, 3, 3), kind="gradient")


def test_gradients_of_a_tensor_with_several_uses_are_added_in_place() -> None:
    tensors = (
        Tensor("w", (3,), kind="parameter"),
        Tensor("a", (3,)),
        Tensor("b", (3,)),
        Tensor("y", (3,), kind="output"),
    )
    steps = (
        Step("first", ("w",), ("a",)),
        Step("second", ("a", "w"), ("b",)),
        Step("add", ("a", "b", "w"), ("y",)),
    )
    network = Network(tensors, steps).with_backward()
    assert [(step.name, step.reads, step.writes) for step in network.steps[4:]] == [
        ("add.backward", ("y.grad",), ("a.grad.1", "b.grad", "w.grad.1")),
        ("second.backward", ("b.grad",), ("a.grad.2", "w.grad.2")),
        ("a.grad", ("a.grad.1", "a.grad.2"), ("a.grad",)),
        ("w.grad.sum2", ("w.grad.1", "w.grad.2"), ("w.grad.sum2",)),
        ("first.backward", ("a.grad",), ("w.grad.3",)),
        ("w.grad", ("w.grad.sum2", "w.grad.3"), ("w.grad",)),
    ]
    assert network.tensor("w.grad") == Tensor("w.grad", (3,), "f32", "gradient", "w.grad.sum2")
    assert bytes_of(network, "gradient") == 12


def test_a_step_without_a_gradient_has_no_backward_step_and_saves_nothing() -> None:
    tensors = (
        Tensor("x", (3,), kind="input"),
        Tensor("frozen", (3,), kind="buffer"),
        Tensor("w", (3,), kind="parameter"),
        Tensor("a", (3,)),
        Tensor("y", (3,), kind="output"),
        Tensor("largest", (1,), "i64", kind="output"),
    )
    steps = (
        Step("normalise", ("x", "frozen"), ("a",), ("x",)),
        Step("multiply", ("a", "w"), ("y",), ("a",)),
        Step("argmax", ("y",), ("largest",), ("y",)),
    )
    network = Network(tensors, steps).with_backward()
    assert names(network.steps[3:]) == ["y.grad", "multiply.backward"]
    assert [step.saves for step in network.steps[:3]] == [(), ("a",), ()]


def test_flops_of_a_linear_layer_double_in_its_backward_step() -> None:
    builder = Builder(2, 3, 4, 4)
    builder.linear(5)
    builder.linear(6)
    network = builder.finish().with_backward()
    first, second = (network.step(name) for name in ("linear0", "linear1"))
    assert first.flops == 2 * 2 * 48 * 5
    assert network.step("linear0.backward").flops == first.flops  # the image needs no gradient
    assert network.step("linear1.backward").flops == 2 * second.flops


def test_a_network_is_differentiated_once() -> None:
    with pytest.raises(UsageError, match=r"has backward steps already: step 'pool\.backward'"):
        TRAINING.with_backward()


def test_a_fused_convolution_cannot_be_differentiated() -> None:
    fused = Problem(
        mini_batch=2, in_channels=3, out_channels=4, input=(8, 8), kernel=(3, 3), epilogue="+relu"
    )
    step = replace(STEPS[0], kernels=(Kernel(fused, "forward"),))
    with pytest.raises(UsageError, match="step 'conv' cannot be differentiated: its kernel f32:"):
        Network(TENSORS, (step, *STEPS[1:])).with_backward()


def test_a_tensor_with_the_name_of_a_gradient_is_refused() -> None:
    tensors = (*TENSORS, Tensor("w.grad", (1,), kind="buffer"))
    with pytest.raises(UsageError, match=r"tensor 'w\.grad' has the name of a gradient of 'w'"):
        Network(tensors, STEPS).with_backward()


def test_a_training_step_needs_all_features_and_weights_and_few_gradients_at_once() -> None:
    forward = bundled_network("vgg16", 64)
    training = forward.with_backward()
    features = bytes_of(forward, "input", "activation", "output")
    largest = max(tensor.bytes for tensor in forward.tensors)
    peak = max(count_resident(training, 1, {}))
    assert features < peak - bytes_of(forward, "parameter") <= features + 2 * largest
    assert bytes_of(training, "gradient") == bytes_of(forward, "parameter") == 4 * 138_357_544
    # Each ReLU's result is saved twice but counted once: by the ReLU, and by the layer behind it.
    assert len(training.saved) == 15 + 5 + 5
