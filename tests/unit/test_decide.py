import pytest
from cached_rows import HERE

from mucudnn._native import parse_descriptor
from mucudnn.costs.records import Measurement
from mucudnn.costs.table import CostTable
from mucudnn.errors import MucudnnError, NothingFitsError
from mucudnn.plans.decide import Limits, choose_within, decide, desirable_configurations
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration

MiB = 2**20
SUCCESS = "CUDNN_STATUS_SUCCESS"


def kernel(
    batch: int = 8, *, pass_: str = "forward", dtype: str = "f32", name: str = "a", count: int = 1
) -> Kernel:
    return Kernel(parse_descriptor(f"{dtype}:mb{batch}_ic4ih5_oc4_kh3")[0], pass_, name, count)


def lean_row(size: int) -> Measurement:
    return Measurement(size, "LEAN", SUCCESS, 0, "", 2.0 * size)


def hungry_row(size: int) -> Measurement:
    return Measurement(size, "HUNGRY", SUCCESS, size * MiB, "", 0.5 + size)


def rows(*sizes: int) -> list[Measurement]:
    return [measure(size) for size in sizes for measure in (lean_row, hungry_row)]


SIZES = (1, 2, 4, 8)


def table(measurements: dict[Kernel, list[Measurement]]) -> CostTable:
    return CostTable(HERE, measurements)


def parts(configuration: Configuration | None) -> list[tuple[int, str]]:
    return [(part.micro_batch, part.algorithm) for part in configuration.parts] if configuration else []


@pytest.mark.parametrize(
    ("limits", "least"), [(Limits(workspace=MiB - 1), f"{MiB} bytes"), (Limits(total=0), f"{2 * MiB} bytes")]
)
def test_where_nothing_fits_the_kernel_and_the_least_workspace_are_named(limits: Limits, least: str) -> None:
    measured = {kernel(name="conv9", count=2): [hungry_row(size) for size in SIZES]}
    with pytest.raises(NothingFitsError, match=f"(?s)(conv9.*{least}|{least}.*conv9)") as caught:
        decide(table(measured), "power_of_two", limits)
    assert caught.value.exit_code == 3


def test_a_size_that_was_never_measured_is_named() -> None:
    with pytest.raises(MucudnnError, match="a forward: nothing was measured at micro-batch 2, 4"):
        decide(table({kernel(): rows(1, 8)}), "power_of_two", Limits())


def test_sizes_beyond_the_policy_are_left_aside() -> None:
    (decision,) = decide(table({kernel(): rows(*SIZES, 3, 5)}), "undivided", Limits(workspace=2 * MiB))
    assert parts(decision.divided) == [(8, "LEAN")]


def test_a_filter_gradient_in_bf16_is_divided_into_at_most_four_slices() -> None:
    gradient = kernel(16, pass_="backward_filter", dtype="bf16")
    desirable = desirable_configurations(rows(1, 2, 4, 8, 16), gradient)
    by_workspace = {c.workspace: parts(c) for c in desirable}
    assert by_workspace[4 * MiB] == [(4, "HUNGRY")] * 4
    assert max(len(c.parts) for c in desirable) == 4
    assert [c.workspace for c in desirable if len(c.parts) == 1][-1] == 16 * MiB


def test_a_filter_gradient_in_fp16_is_not_divided_whatever_a_cache_has() -> None:
    gradient = kernel(16, pass_="backward_filter", dtype="f16")
    desirable = desirable_configurations(rows(1, 2, 4, 8, 16), gradient)
    assert [parts(c) for c in desirable] == [[(16, "LEAN")], [(16, "HUNGRY")]]
    assert desirable_configurations(rows(1, 2, 4, 8), gradient) == []


def test_only_the_whole_mini_batch_of_such_a_gradient_has_to_be_measured() -> None:
    gradient = kernel(16, pass_="backward_filter", dtype="f16")
    (decision,) = decide(table({gradient: rows(16)}), "all", Limits())
    assert decision.divided == decision.undivided


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("limit", [0, 2 * MiB, 5 * MiB, 11 * MiB, None])
def test_one_kernel_within_one_limit_gets_the_same_without_its_desirable_set(
    limit: int | None, dtype: str
) -> None:
    gradient = kernel(16, pass_="backward_filter", dtype=dtype)
    costs = table({gradient: rows(1, 2, 4, 8, 16)})
    (decision,) = decide(costs, "power_of_two", Limits(workspace=limit))
    assert choose_within(costs, gradient, "power_of_two", limit) == decision.divided


@pytest.mark.parametrize("sizes", [SIZES, ()])
def test_one_kernel_that_fits_no_limit_gets_the_same_error(sizes: tuple[int, ...]) -> None:
    failed = [Measurement(size, "FAILS", "CUDNN_STATUS_NOT_SUPPORTED", 0) for size in SIZES]
    costs = table({kernel(): failed + [hungry_row(size) for size in sizes]})
    with pytest.raises(NothingFitsError) as expected:
        decide(costs, "power_of_two", Limits(workspace=1))
    with pytest.raises(NothingFitsError) as actual:
        choose_within(costs, kernel(), "power_of_two", 1)
    assert str(actual.value) == str(expected.value)
