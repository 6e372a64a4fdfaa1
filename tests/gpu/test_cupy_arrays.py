"""Our functions convolve CuPy arrays on its current stream, and refuse one that is captured."""

from typing import Any

import numpy as np
import pytest

import mucudnn
from mucudnn.errors import UsageError

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("only_on_gpu")]

SHAPES = (8, 16, 14, 14), (32, 16, 3, 3), (8, 32, 14, 14)


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy", reason="needs CuPy: pip install cupy-cuda13x")


def values(dtype: type) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [(random.random(shape) - 0.5).astype(dtype) for shape in SHAPES]


def all_passes(x: Any, w: Any, dy: Any) -> tuple[Any, ...]:
    return (
        mucudnn.convolution_forward(x, w, padding=1, workspace="1MiB"),
        mucudnn.convolution_backward_data(dy, w, SHAPES[0], padding=1, workspace="1MiB"),
        mucudnn.convolution_backward_filter(x, dy, SHAPES[1], padding=1, workspace="1MiB"),
    )


def assert_close(cupy: Any, results: tuple[Any, ...], operands: list[np.ndarray]) -> None:
    """Compare the results with those of the host engine in fp64."""
    for result, expected in zip(results, all_passes(*(a.astype(np.float64) for a in operands)), strict=True):
        assert type(result) is cupy.ndarray
        error = np.linalg.norm(cupy.asnumpy(result).astype(np.float64) - expected)
        assert error <= 4e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_three_passes(cupy: Any, dtype: type) -> None:
    operands = values(dtype)
    assert_close(cupy, all_passes(*map(cupy.asarray, operands)), operands)


def test_out_is_written_and_scaled(cupy: Any) -> None:
    x, w, dy = map(cupy.asarray, values(np.float32))
    plain = mucudnn.convolution_forward(x, w, padding=1)
    out = dy.copy()
    assert mucudnn.convolution_forward(x, w, padding=1, alpha=2.0, beta=0.5, out=out) is out
    cupy.testing.assert_allclose(out, 2 * plain + 0.5 * dy, rtol=1e-2, atol=1e-2)


def test_calls_go_to_the_current_stream(cupy: Any) -> None:
    operands = values(np.float32)
    x, w, dy = map(cupy.asarray, operands)
    all_passes(x, w, dy)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        late = x.copy()
        for _ in range(50):
            late += 1  # the additions still run when the calls are made
        late -= 50
        results = all_passes(late, w, dy)
    stream.synchronize()
    assert_close(cupy, results, operands)


def test_a_captured_stream_is_refused_and_left_intact(cupy: Any) -> None:
    x, w, _ = map(cupy.asarray, values(np.float32))
    y = cupy.zeros_like(x)
    expected = cupy.asnumpy(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        cupy.add(x, 0, out=y)  # loads the kernel before the capture
        y.fill(0)
        stream.synchronize()
        stream.begin_capture()
        cupy.add(x, 0, out=y)
        with pytest.raises(UsageError, match="a CUDA graph is being captured"):
            mucudnn.convolution_forward(x, w, padding=1)
        graph = stream.end_capture()
        graph.launch()
        stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(y), expected)
