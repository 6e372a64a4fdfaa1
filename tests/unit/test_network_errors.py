"""Steps and tensors that make no network."""

from __future__ import annotations

from dataclasses import replace

import pytest
from networks import PROBLEM

from mucudnn.errors import ArgumentTypeError, UsageError
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.network import Network
from mucudnn.problems.steps import Step, Tensor


@pytest.mark.parametrize(
    ("tensors", "steps", "message"),
    [
        ("t t", [], "two tensors have the name 't'"),
        ("t", [Step("a", (), ("t",)), Step("a")], "two steps have the name 'a'"),
        ("", [Step("a", ("t",))], "step 'a' names 't', which is not a tensor of the network"),
        ("", [Step("a", (), ("t",))], "step 'a' names 't', which is not a tensor of the network"),
        ("t", [Step("a", ("t",)), Step("b", (), ("t",))], "step 'a' reads 't' before a step has written it"),
        ("t", [Step("a", (), ("t",)), Step("b", (), ("t",))], "'b' writes 't', which step 'a' has written"),
        ("x", [Step("a", (), ("x",))], "step 'a' writes 'x', an input"),
        ("t", [Step("a")], "no step writes tensor 't', of the kind activation"),
        ("", [Step("a", backward_of="b")], "'a' is the backward step of 'b', which is not an earlier step"),
        (
            "",
            [Step("a"), Step("b", backward_of="a"), Step("c", backward_of="a")],
            "'c' is the backward step of 'a', which has a backward step already",
        ),
        (
            "",
            [Step("a"), Step("b", backward_of="a"), Step("c", backward_of="b")],
            "'c' is the backward step of 'b', which is a backward step itself",
        ),
        (
            "t",
            [Step("a", (), ("t",), ("t",)), Step("b", backward_of="a")],
            "'b' is the backward step of 'a', which saves 't' for it, but it does not read that",
        ),
    ],
)
def test_steps_that_cannot_run_in_this_order_are_refused(
    tensors: str, steps: list[Step], message: str
) -> None:
    kinds = {"t": "activation", "x": "input"}
    declared = tuple(Tensor(name, (1,), kind=kinds[name]) for name in tensors.split())
    with pytest.raises(UsageError, match=message):
        Network(declared, tuple(steps))


@pytest.mark.parametrize(
    ("old", "new", "steps", "message"),
    [
        ({}, {}, [Step("c", ("s",), ("t",)), Step("d", ("s",))], "'d' reads 's', which step 'c' has overwr"),
        ({}, {"in_place_of": "r"}, [Step("c", (), ("t",))], "'c' names 'r', which is not a tensor"),
        ({}, {"shape": (2,)}, [Step("c", (), ("t",))], "'c' writes 't' over 's', which has 4 bytes, not 8"),
        (
            {"kind": "output"},
            {},
            [Step("c", (), ("t",))],
            "over 's', which is not an activation: its kind is out",
        ),
        ({}, {}, [Step("c", ("s",), (), ("s",)), Step("d", (), ("t",))], "over 's', which step 'c' saves"),
        ({}, {}, [Step("c", ("s",), ("t",), ("s",))], "over 's', which step 'c' saves"),
        ({}, {}, [Step("c", (), ("t",)), Step("d", (), ("u",))], "over 's', which step 'c' has overwritten"),
    ],
)
def test_memory_that_is_still_needed_is_not_overwritten(
    old: dict, new: dict, steps: list[Step], message: str
) -> None:
    tensors = (
        replace(Tensor("s", (1,)), **old),
        replace(Tensor("t", (1,), in_place_of="s"), **new),
        Tensor("u", (1,), in_place_of="s"),
    )
    with pytest.raises(UsageError, match=message):
        Network(tensors, (Step("b", (), ("s",)), *steps))


def test_memory_is_written_before_it_is_overwritten() -> None:
    tensors = (Tensor("s", (1,)), Tensor("t", (1,), in_place_of="s"))
    with pytest.raises(UsageError, match="'a' writes 't' over 's', which no earlier step has written"):
        Network(tensors, (Step("a", (), ("s", "t")),))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "a tensor has an empty name"),
        ({"name": "a\ud800"}, "the name of a tensor is 'a.ud800', which has half of a surrogate pair"),
        ({"shape": (2, -1)}, "a size of tensor 't' is -1: it must be at least 0"),
        ({"shape": (2**63,)}, "it must be at least 0 and below 2"),
        ({"data_type": "f31"}, "tensor 't' has the data type 'f31': there are f64, f32"),
        ({"kind": "weight"}, "tensor 't' is of the kind 'weight': the kinds are activation, input"),
        ({"kind": "input", "in_place_of": "s"}, "'t', of the kind input, cannot be in the memory of another"),
    ],
)
def test_a_tensor_that_cannot_be_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Tensor(**{"name": "t", "shape": (1,), **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "a step has an empty name"),
        ({"reads": ("",)}, "a tensor has an empty name"),
        ({"reads": ("t", "t")}, "step 's' reads 't' twice"),
        ({"reads": ("t",), "saves": ("u",)}, "step 's' saves 'u', which it neither reads nor writes"),
        ({"flops": -1}, "the number of flops of step 's' is -1"),
        ({"kernels": (Kernel(PROBLEM, "sideways"),)}, "step 's' has a kernel in the pass 'sideways'"),
        ({"kernels": (Kernel(PROBLEM, "forward", "k", 0),)}, "step 's' has a kernel 0 times"),
    ],
)
def test_a_step_that_cannot_be_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Step(**{"name": "s", **fields})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Tensor(7, (1,)),  # type: ignore[arg-type]  # wrong on purpose
        lambda: Tensor("t", 1),  # type: ignore[arg-type]  # wrong on purpose
        lambda: Tensor("t", (1.5,)),  # type: ignore[arg-type]  # wrong on purpose
        lambda: Step("s", reads="tensor"),  # type: ignore[arg-type]  # wrong on purpose
        lambda: Step("s", reads=(1,)),  # type: ignore[arg-type]  # wrong on purpose
        lambda: Step("s", flops=True),
    ],
)
def test_a_wrong_type_is_refused(make: object) -> None:
    with pytest.raises(ArgumentTypeError):
        make()  # type: ignore[operator]  # wrong on purpose
