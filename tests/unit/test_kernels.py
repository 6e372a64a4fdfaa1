from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mucudnn._native import Problem, most_slices, parse_descriptor, tile_kernel
from mucudnn.errors import UsageError
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.sources import Flags, bundled_networks, read_kernels

FORWARD = ("forward",)


def shape(problem: Problem) -> tuple[object, ...]:
    return (
        problem.in_channels,
        problem.input,
        problem.out_channels,
        problem.kernel,
        problem.stride,
        problem.padding,
    )


def shapes_of(network: str) -> Counter[tuple[object, ...]]:
    return Counter(
        {shape(kernel.problem): kernel.count for kernel in read_kernels(network, Flags(), FORWARD)}
    )


def convolution(
    in_channels: int, size: int, out_channels: int, kernel: int, stride: int, padding: int
) -> tuple[object, ...]:
    def square(n: int) -> tuple[int, int]:
        return (n, n)

    return (in_channels, square(size), out_channels, square(kernel), square(stride), square(padding))


def resnet(blocks: list[int], *, bottleneck: bool) -> Iterator[tuple[object, ...]]:
    """Yield the convolutions of torchvision.models.resnet (`_make_layer`, both blocks), 224 x 224 images."""
    yield convolution(3, 224, 64, 7, 2, 3)
    planes_in, size = 64, 56
    expansion = 4 if bottleneck else 1
    for layer, count in enumerate(blocks):
        planes = 64 << layer
        for block in range(count):
            stride = 2 if layer > 0 and block == 0 else 1
            if bottleneck:
                yield convolution(planes_in, size, planes, 1, 1, 0)
                yield convolution(planes, size, planes, 3, stride, 1)
                yield convolution(planes, size // stride, planes * expansion, 1, 1, 0)
            else:
                yield convolution(planes_in, size, planes, 3, stride, 1)
                yield convolution(planes, size // stride, planes, 3, 1, 1)
            if stride != 1 or planes_in != planes * expansion:
                yield convolution(planes_in, size, planes * expansion, 1, stride, 0)
            planes_in, size = planes * expansion, size // stride


def vgg(configuration: list[int | str]) -> Iterator[tuple[object, ...]]:
    """Yield the convolutions of torchvision.models.vgg (`make_layers`) for 224 x 224 images."""
    channels, size = 3, 224
    for entry in configuration:
        if isinstance(entry, int):
            yield convolution(channels, size, entry, 3, 1, 1)
            channels = entry
        else:
            size //= 2


def test_resnet18_has_the_convolutions_of_its_structure() -> None:
    assert shapes_of("resnet18") == Counter(resnet([2, 2, 2, 2], bottleneck=False))
    assert shapes_of("resnet18").total() == 20


def test_resnet50_has_the_convolutions_of_its_structure() -> None:
    assert shapes_of("resnet50") == Counter(resnet([3, 4, 6, 3], bottleneck=True))
    assert shapes_of("resnet50").total() == 53


def test_vgg16_has_the_convolutions_of_its_structure() -> None:
    structure: list[int | str] = [
        64,
        64,
        "M",
        128,
        128,
        "M",
        256,
        256,
        256,
        "M",
        512,
        512,
        512,
        "M",
        512,
        512,
        512,
    ]
    assert shapes_of("vgg16") == Counter(vgg(structure))


def test_cosmoflow_has_the_seven_million_parameters_of_its_paper() -> None:
    kernels = read_kernels("cosmoflow", Flags(), FORWARD)
    dense = 2048 * 2048 + 2048 * 256 + 256 * 3
    assert sum(kernel.problem.w_elements for kernel in kernels) + dense == 7_038_128
    last = kernels[-1].problem
    assert last.y_elements // last.mini_batch == 2048


def test_unet3d_has_the_sizes_of_its_figure() -> None:
    kernels = {kernel.name: kernel.problem for kernel in read_kernels("unet3d", Flags(), FORWARD)}
    assert kernels["down1.conv1"].input == (116, 132, 132)
    assert kernels["down4.conv2"].output == (7, 9, 9)
    assert kernels["up3.conv1"].in_channels == 256 + 512
    assert kernels["out"].output == (28, 44, 44)


@pytest.mark.parametrize("network", bundled_networks())
def test_bundled_networks_leave_the_mini_batch_to_the_user(network: str) -> None:
    assert {kernel.problem.mini_batch for kernel in read_kernels(network, Flags(), FORWARD)} == {64}
    assert {kernel.problem.mini_batch for kernel in read_kernels(network, Flags(batch=7), FORWARD)} == {7}


def test_a_descriptors_values_hold_unless_a_flag_overrides_them() -> None:
    text = "f16:nhwc:mb8_ic4ih5_oc4_kh3"
    (kernel,) = read_kernels(text, Flags(), FORWARD)
    p = kernel.problem
    assert (p.data_type, p.layout, p.math, p.mini_batch) == ("f16", "nhwc", "default", 8)
    (kernel,) = read_kernels(text, Flags(batch=2, dtype="bf16", layout="nchw", math="fma"), FORWARD)
    p = kernel.problem
    assert (p.data_type, p.layout, p.math, p.mini_batch) == ("bf16", "nchw", "fma", 2)


def test_identical_problems_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "network.txt"
    file.write_text('# two layers\n\nic4ih5_oc4_kh3_n"first*2"\n  ic4ih5_oc4_kh3_n"again"\nic4ih6_oc4_kh3\n')
    kernels = read_kernels(str(file), Flags(), ("forward", "backward_data"))
    assert [(k.name, k.pass_, k.count) for k in kernels] == [
        ("first", "forward", 3),
        ("first", "backward_data", 3),
        ("", "forward", 1),
        ("", "backward_data", 1),
    ]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("ic4ih5_oc4_kh3_zz9", "zz9"),
        ("ic2000000000ih2000000000_oc4_kh3", "2^63"),
    ],
)
def test_an_unreadable_line_of_a_file_is_named_with_its_wrong_part(
    line: str, part: str, tmp_path: Path
) -> None:
    file = tmp_path / "network.txt"
    file.write_text(f"# comment\nic4ih5_oc4_kh3\n{line}\n")
    with pytest.raises(UsageError) as caught:
        read_kernels(str(file), Flags(), FORWARD)
    assert f"{file}, line 3: " in str(caught.value)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fused_convolution_has_a_forward_pass_only(tmp_path: Path) -> None:
    file = tmp_path / "network.txt"
    file.write_text("ic4ih5_oc4_kh3\nic4ih5_oc4_kh3+bias+relu\n")
    kernels = read_kernels(str(file), Flags(), ("forward", "backward_data"))
    assert [(k.problem.epilogue, k.pass_) for k in kernels] == [
        ("", "forward"),
        ("", "backward_data"),
        ("+bias+relu", "forward"),
    ]
    assert kernels[2].label.endswith("_kh3+bias+relu")
    with pytest.raises(UsageError, match="has no descriptor with a kernel in the pass backward_filter"):
        read_kernels("ic4ih5_oc4_kh3+bias+relu", Flags(), ("backward_filter",))


def test_an_unknown_network_suggests_near_names_and_lists_all() -> None:
    with pytest.raises(UsageError, match=r"did you mean resnet50.*alexnet.*vgg16"):
        read_kernels("resnet5", Flags(), FORWARD)


def test_a_file_without_descriptors_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "empty.txt"
    file.write_text("# nothing yet\n")
    with pytest.raises(UsageError, match="no descriptor"):
        read_kernels(str(file), Flags(), FORWARD)


def test_a_binary_file_is_not_a_list_of_descriptors(tmp_path: Path) -> None:
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        read_kernels(str(file), Flags(), FORWARD)


# --- kernels as arguments of the extension ---

PROBLEM = parse_descriptor("mb2_ic3ih8_oc4_kh3_ph1")[0]


def test_the_extension_names_an_unknown_pass_of_a_kernel() -> None:
    with pytest.raises(ValueError, match="unknown pass 'sideways'"):
        most_slices(Kernel(PROBLEM, "sideways"))


@pytest.mark.parametrize("value", [PROBLEM, None, (PROBLEM, "forward"), SimpleNamespace(problem=PROBLEM)])
def test_an_object_without_problem_and_pass_is_not_a_kernel(value: object) -> None:
    with pytest.raises(TypeError, match=r"kernel: mucudnn\.problems\.kernels\.Kernel"):
        most_slices(value)  # type: ignore[arg-type]  # wrong on purpose


def test_a_tile_is_a_kernel_of_the_same_pass() -> None:
    tile = tile_kernel(Kernel(PROBLEM, "backward_data", "conv1", 3), 4)
    assert isinstance(tile, Kernel)
    assert (tile.mini_batch, tile.pass_, tile.name, tile.count) == (1, "backward_data", "", 1)
