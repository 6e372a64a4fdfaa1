"""Threads may share a converted model, also while another thread converts or restores it."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
from needs_torch import mt, torch

from mucudnn.plans.plan import Plan
from mucudnn.torch.choosing import answers
from mucudnn.torch.layers import converted as modules
from mucudnn.torch.layers import transposed
from mucudnn.torch.layers.convert import divide
from mucudnn.torch.layers.settings import ConversionSettings

nn, Tensor = torch.nn, torch.Tensor
SHAPES = [(size, 3, rows, 9) for size in (1, 2) for rows in (7, 8)]


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2))


def run_in_threads(work: Callable[[int], None], count: int = 8) -> None:
    """Run the work in threads at the same time, and raise the first of their errors."""
    errors: list[BaseException] = []
    begin = threading.Barrier(count)

    def run(number: int) -> None:
        begin.wait(60)
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("tune", ["eager", "never"])
@pytest.mark.parametrize("is_converting", [False, True])
def test_eight_threads_train_and_evaluate_one_model(tune: str, is_converting: bool) -> None:
    stock = network()
    ours = mt.convert(copy.deepcopy(stock), tune=tune)
    inputs = [torch.randn(shape) for shape in SHAPES]
    results = [stock(x).detach() for x in inputs]
    gradients = [torch.autograd.grad(stock(x).sum(), list(stock.parameters())) for x in inputs]

    def work(number: int) -> None:
        for step in range(30):
            case = (3 * number + step) % len(SHAPES)
            if number == 7 and is_converting:
                mt.restore(ours) if step % 2 else mt.convert(ours, tune=tune)
            elif (number + step) % 2:
                with torch.no_grad():
                    torch.testing.assert_close(ours(inputs[case]), results[case], rtol=1e-4, atol=1e-4)
            else:
                actual = torch.autograd.grad(ours(inputs[case]).sum(), list(ours.parameters()))
                torch.testing.assert_close(actual, gradients[case], rtol=1e-4, atol=1e-3)
            assert "Conv2d(3, 8" in repr(ours)

    run_in_threads(work)


@pytest.mark.parametrize("place", [(modules, "_key_of"), (answers, "find"), (modules, "can_divide")])
def test_a_call_ends_although_another_thread_restores_the_module(
    place: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, x = nn.Conv2d(3, 4, 3), torch.randn(SHAPES[0])[:0]  # PyTorch runs an empty mini-batch
    module, real = mt.convert(copy.deepcopy(own)), getattr(*place)

    def restore(*arguments: Any, **options: Any) -> Any:
        mt.restore(module)
        return real(*arguments, **options)

    monkeypatch.setattr(*place, restore)
    assert module(x).shape == own(x).shape
    assert type(module) is nn.Conv2d


@pytest.mark.parametrize("shape", [SHAPES[0], (0, *SHAPES[0][1:])])
def test_a_call_to_a_planned_transposed_layer_ends_although_another_thread_restores_it(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, x = nn.ConvTranspose2d(3, 4, 3), torch.randn(shape)
    module = copy.deepcopy(own)
    divide(module, ConversionSettings("1MiB", str(Plan({}, ()))))

    def restore() -> bool:
        mt.restore(module)
        return False

    monkeypatch.setattr(transposed, "is_transformed", restore)
    torch.testing.assert_close(module(x), own(x), rtol=1e-4, atol=1e-4)
    assert type(module) is nn.ConvTranspose2d


def test_a_module_that_is_converted_while_steps_are_left_to_pytorch_is_noted() -> None:
    model = mt.convert(nn.Sequential(*(nn.Conv2d(1, 1, 1) for _ in range(200))))
    chosen = model[0]._mucudnn

    def work(number: int) -> None:
        for step in range(20):
            if number % 2:
                chosen.leave_to_pytorch(step % 2 == 0)
            else:
                for module in [copy.copy(module) for module in model]:
                    divide(module, chosen)

    run_in_threads(work)
