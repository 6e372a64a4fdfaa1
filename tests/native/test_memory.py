"""An engine fills its memory with random values for measuring, and reads values back."""

import numpy as np
import pytest

from mucudnn import _native

MANY = 3 * 2**20
SIZES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}


def random(engine: _native.Engine, data_type: str, count: int, seed: int) -> np.ndarray:
    memory = engine.allocate(count * SIZES[data_type])
    memory.fill_random(data_type, count, seed)
    return memory.read(data_type, count)


@pytest.mark.parametrize("data_type", SIZES)
def test_random_values_are_spread_over_one_around_zero(engine: _native.Engine, data_type: str) -> None:
    values = random(engine, data_type, MANY, 1)
    assert -0.5 <= values.min() < -0.49
    assert 0.49 < values.max() <= 0.5
    assert abs(values.mean()) < 1e-3
    assert abs(values.std() - 12**-0.5) < 1e-3


def test_a_seed_gives_the_same_values_every_time_and_another_seed_others(engine: _native.Engine) -> None:
    first, again, other = (random(engine, "f32", 1000, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(random(engine, "f32", MANY, 1)[:1000], first)


def test_no_two_samples_of_a_tensor_are_alike_although_values_repeat(engine: _native.Engine) -> None:
    values = random(engine, "f32", MANY, 1)
    assert len(np.unique(values)) < MANY / 2
    samples = values.reshape(64, -1)
    assert len({sample.tobytes() for sample in samples}) == 64


@pytest.mark.parametrize("count", [0, 1])
def test_a_few_values_are_filled_too(engine: _native.Engine, count: int) -> None:
    memory = engine.allocate(4)
    memory.write("f32", np.full(1, 7.0))
    memory.fill_random("f32", count, 1)
    assert (memory.read("f32", 1)[0] == 7.0) == (count == 0)


@pytest.mark.parametrize("data_type", SIZES)
def test_values_are_read_from_any_place_and_never_past_the_end(
    engine: _native.Engine, data_type: str
) -> None:
    memory = engine.allocate(100 * SIZES[data_type])
    memory.fill_random(data_type, 100, 1)
    values = memory.read(data_type, 100)
    assert np.array_equal(memory.read(data_type, 30, 70), values[70:])
    assert memory.read(data_type, 0, 100).size == 0
    for count, first in ((31, 70), (1, 100), (0, 101)):
        with pytest.raises(ValueError, match=f"101 values of {data_type} do not fit"):
            memory.read(data_type, count, first)
