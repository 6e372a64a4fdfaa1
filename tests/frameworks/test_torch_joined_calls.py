"""Blocks whose `forward` gives the result of a convolution to a batch norm, both called by name."""

import copy
import linecache
import pickle
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from needs_torch import mt, torch
from torch import Tensor, nn

from mucudnn.torch.layers.joined_calls import RUN_PAIR, Pair, find_pairs, joined


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.relu, self.after = nn.ReLU(), nn.Sequential()
        self.inside = nn.ModuleDict({"conv": nn.Conv2d(3, 3, 1), "bn": nn.BatchNorm2d(3)})
        self.seen: list[Tensor] = []


class Nested(Block):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)) + x)


class InStatements(Block):
    """The form of torchvision's ResNets."""

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.conv(x)
        out = self.bn(out)
        out += identity
        return self.relu(out)


class InReturn(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return nn.functional.relu(self.bn(x), inplace=True)


class WithNameForEach(Block):
    def forward(self, x: Tensor) -> Tensor:
        convolved = self.conv(x)
        normed = self.bn(convolved)
        return normed + x


class InsideAnother(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.inside.bn(self.inside.conv(x))


class InBranches(Block):
    def forward(self, x: Tensor, *, flag: bool = True) -> Tensor:
        for _ in range(2):
            if flag and x.mean() < 1e9:
                x = self.conv(x)
                x = self.bn(x)
                self.seen.append(x)
        return x


class InAnotherMethod(Block):
    """The form of torchvision's ResNet, and of other networks for `forward_features`."""

    def features(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


class ReadTwice(Block):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        z = self.bn(y)
        return y + z


class ReadBetween(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        self.seen.append(x)
        return self.bn(x)


class ReadInPlace(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = self.bn(x) + x
        return self.relu(x)


class ReadByHandler(Block):
    def forward(self, x: Tensor) -> Tensor:
        try:
            x = self.conv(x)
            x = self.bn(x)
        finally:
            self.seen.append(x)
        return x


class ReadByFunction(Block):
    def forward(self, x: Tensor) -> Tensor:
        def keep() -> None:
            self.seen.append(x)

        x = self.conv(x)
        x = self.bn(x)
        keep()
        return x


class ReadByText(Block):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        z = self.bn(y)
        self.seen.append(locals()["y"])
        return z


class Named(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.bn(y := self.conv(x)) + y


class WithArguments(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.bn(input=self.conv(x))


def prepared(own: type[nn.Module], **options: Any) -> tuple[nn.Module, Any]:
    """Return a block with random statistics in eval mode, and a converted copy that measures nothing."""
    torch.manual_seed(1)
    block = own().eval()
    for module in block.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return block, mt.convert(copy.deepcopy(block), **({"tune": "never"} | options))


def image() -> Tensor:
    return torch.randn(2, 3, 8, 7, generator=torch.Generator().manual_seed(2))


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


JOINED = [Nested, InStatements, InReturn, WithNameForEach, InsideAnother, InBranches, InAnotherMethod]
READ_ELSEWHERE = [
    ReadTwice, ReadBetween, ReadInPlace, ReadByHandler, ReadByFunction, ReadByText, Named, WithArguments,
]  # fmt: skip


@pytest.mark.parametrize("own", JOINED)
def test_a_batch_norm_that_alone_reads_a_convolution_is_folded(own: type[Block], norms: list[int]) -> None:
    block, model = prepared(own)
    result = model(image())
    assert not norms
    torch.testing.assert_close(result, block(image()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("own", READ_ELSEWHERE)
def test_a_convolution_that_something_else_reads_keeps_its_result(own: type[Block], norms: list[int]) -> None:
    block, model = prepared(own)
    assert type(model) is own
    torch.testing.assert_close(model(image()), block(image()), rtol=1e-5, atol=1e-5)
    assert len(norms) == 2
    for ours, stock in zip(model.seen, block.seen, strict=True):
        torch.testing.assert_close(ours, stock, rtol=1e-5, atol=1e-5)


def test_the_rest_of_the_method_stays(norms: list[int]) -> None:
    block, model = prepared(InBranches)
    assert model(image(), flag=False).equal(image())
    assert not model.seen
    model(image())
    assert len(model.seen) == 2
    model.bn.running_mean.add_(1)
    block.bn.running_mean.add_(1)
    torch.testing.assert_close(model(x=image()), block(x=image()), rtol=1e-5, atol=1e-5)
    assert len(norms) == 2  # the stock block's


def test_an_error_shows_the_line_that_raised_it() -> None:
    _, model = prepared(InStatements)
    with pytest.raises(RuntimeError) as raised:
        model(image()[:, :2])
    assert "out = self.conv(x)" in [frame.line for frame in traceback.extract_tb(raised.tb)]


def test_restore_gives_the_class_and_every_result_again(norms: list[int]) -> None:
    block, model = prepared(InStatements)
    assert type(model) is not InStatements
    assert isinstance(model, InStatements)
    model(image())
    assert type(mt.restore(model)) is InStatements
    assert model(image()).equal(block(image()))


def test_training_gradients_and_hooks_run_the_modules(norms: list[int]) -> None:
    _, model = prepared(InStatements)
    model(image())
    assert not norms
    with torch.enable_grad():
        model(image()).sum().backward()
    assert len(norms) == 1
    assert model.bn.weight.grad is not None
    model.train()(image())
    assert len(norms) == 2
    outputs = list[Tensor]()
    model.eval().conv.register_forward_hook(lambda _, args, output: outputs.append(output))
    model(image())
    assert len(norms) == 3
    torch.testing.assert_close(outputs[0], mt.restore(model).conv(image()))


def test_a_module_that_takes_another_place_is_run(norms: list[int]) -> None:
    block, model = prepared(InStatements)
    model.bn = block.bn = nn.Identity()
    torch.testing.assert_close(model(image()), block(image()), rtol=1e-5, atol=1e-5)


def test_copies_and_pickles_fold_too(norms: list[int]) -> None:
    _, model = prepared(Nested)
    expected = model(image())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(image()), expected)
        assert type(other) is type(model)
    assert not norms


def test_a_pickle_of_a_class_that_has_changed_runs_the_new_method(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(prepared(Nested)[1])
    monkeypatch.setattr(Nested, "forward", WithArguments.forward)
    model = pickle.loads(pickled)
    assert type(model) is Nested
    expected = mt.restore(copy.deepcopy(model))(image())
    torch.testing.assert_close(model(image()), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{"numerics": "strict"}, {"batch_invariant": True}], ids=str)
def test_a_promise_folds_nothing(options: dict[str, Any], norms: list[int]) -> None:
    _, model = prepared(Nested, **options)
    assert type(model) is Nested
    model(image())
    assert len(norms) == 1


def test_traced_and_compiled_models_keep_their_modules() -> None:
    block, model = prepared(InStatements)
    traced = torch.fx.symbolic_trace(model)
    assert {node.target for node in traced.graph.nodes if node.op == "call_module"} == {"conv", "bn", "relu"}
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for run in (traced, compiled, torch.jit.trace(model, image())):
        torch.testing.assert_close(run(image()), block(image()), rtol=1e-5, atol=1e-5)


def test_a_method_whose_source_is_missing_or_another_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def method_of(source: str) -> Any:
        names: dict[str, Any] = {}
        exec(compile(source, "/absent/block.py", "exec"), names)
        return names["Block"].forward

    source = "class Block:\n    def forward(self, x):\n        return self.bn(self.conv(x))\n"
    assert not find_pairs(method_of(source))
    edited = source.replace("conv", "other").splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, "/absent/block.py", (1, None, edited, "/absent/block.py"))
    assert not find_pairs(method_of(source))
    monkeypatch.setitem(
        linecache.cache, "/absent/block.py", (1, None, source.splitlines(True), "/absent/block.py")
    )
    assert find_pairs(method_of(source)) == {Pair("conv", "bn")}


BLOCKS = {
    "if": "if x:\n{}",
    "for": "for _ in range(2):\n{}",
    "try": "try:\n{}\nexcept ValueError:\n    pass",
    "except*": "try:\n{}\nexcept* ValueError:\n    pass",
    "with": "with suppress(ValueError):\n{}",
    "lambda": "self.watch(lambda: x)\nif x:\n{}",
}
FIRST = [f"{name} = self.conv({other})" for name in "xy" for other in "xy"]
SECOND = [
    form.format(name, module, other)
    for form in [
        "{0} = self.{1}({2})",
        "{0} = abs(self.{1}({2}))",
        "{0} = pow(self.{1}({2}), {0}, 997)",
        "{0} = self.{1}({2}) + {2}",
        "{0} = self.{1}(self.conv({2}))",
        "{0} = self.{1}({2} := self.conv({0}))",
        "{0} += self.{1}({2})",
        "self.{1}({2})",
        "return self.{1}({2})",
    ]
    for name in "xy"
    for module in ["bn", "fails"]
    for other in "xy"
]
AFTER = ["return x", "return pow(x, y, 997)"]


class Modules:
    """Stand in for a block: note each call, and what the watched functions return at that time."""

    def __init__(self, run_pair: Callable[..., Any] | None) -> None:
        self.calls, self.run_pair, self.watched = list[Any](), run_pair, list[Callable[[], Any]]()

    def watch(self, value: Callable[[], Any]) -> None:
        self.watched.append(value)

    def called(self, name: str, value: int) -> int:
        self.calls.append((name, value, [value() for value in self.watched]))
        if name == "fails":
            raise ValueError(value)
        return 31 * value + len(name)

    def __getattr__(self, name: str) -> Callable[..., int]:
        return self.run_pair if name == RUN_PAIR and self.run_pair else lambda value: self.called(name, value)


def outcome(forward: Callable[..., Any], run_pair: Callable[..., Any] | None = None) -> Any:
    """Return what a method returns or raises, and the calls that it makes."""
    modules = Modules(run_pair)
    try:
        result = forward(modules, 1, 2)
    except ValueError as error:
        result = str(error)
    return result, modules.calls


@pytest.mark.parametrize("block", BLOCKS)
def test_a_joined_method_does_what_the_method_does(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set[Pair]()
    for number, (first, second, after) in enumerate(product(FIRST, SECOND, AFTER)):
        if block == "except*" and "return" in second:  # Python does not allow it
            continue
        body = BLOCKS[block].format(f"    {first}\n    {second}")
        method = f"def forward(self, x, y):\n{textwrap.indent(body, ' ')}\n {after}"
        source = f"class Block:\n{textwrap.indent(method, ' ')}\n"
        path, names = f"/absent/{block}/{number}.py", dict[str, Any](suppress=suppress)
        exec(compile(source, path, "exec"), names)
        forward = names["Block"].forward
        monkeypatch.setitem(linecache.cache, path, (0, None, source.splitlines(keepends=True), path))
        if pairs := find_pairs(forward):
            found |= pairs
            made = joined(forward, pairs)
            assert outcome(made, lambda outer, inner, value: outer(inner(value))) == outcome(forward), source
    assert bool(found) is (block in ("if", "for", "lambda"))
