"""No convolution reads or writes a byte outside its tensors, which lie against inaccessible pages."""

import numpy as np
import pytest
from drawn_problems import (
    depthwise_problems,
    first_layers,
    padded_problems,
    problems_in_nhwc,
    strided_problems,
    transformed_problems,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples
from reference import OUTPUT, PASSES, CheckedKernel

from mucudnn._native import Engine
from mucudnn.problems.kernels import Kernel
from tests.drop_in.guarded_memory import GuardedBuffer

KINDS = {
    "transformed": transformed_problems(),
    "padded": padded_problems(),
    "depthwise": depthwise_problems(),
    "first layers": first_layers(),
    "nhwc": problems_in_nhwc(),
    "strided": strided_problems(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_end", [True, False])
@settings(max_examples=examples(60))
@given(data=st.data(), pass_=st.sampled_from(PASSES), beta=st.sampled_from([0.0, 1.0, 0.5]))
def test_no_byte_outside_the_tensors_is_read_or_written(
    engine: Engine, kind: str, at_end: bool, data: st.DataObject, pass_: str, beta: float
) -> None:
    problem = data.draw(KINDS[kind])
    kernel = Kernel(problem, pass_)
    algorithm = data.draw(st.sampled_from(CheckedKernel(engine, kernel).runnable(problem.mini_batch)))
    counts = {"x": problem.x_elements, "w": problem.w_elements, "y": problem.y_elements}
    buffers = {
        name: GuardedBuffer(count * problem.element_size, at_end=at_end) for name, count in counts.items()
    }
    memory = {name: engine.borrow(buffer.address, buffer.size) for name, buffer in buffers.items()}
    for seed, (name, count) in enumerate(counts.items()):
        memory[name].fill_random(problem.data_type, count, seed)
    division = engine.prepare(kernel, [(problem.mini_batch, algorithm)])
    division.execute(*memory.values(), engine.allocate(division.workspace), beta=beta)
    assert np.isfinite(memory[OUTPUT[pass_]].read(problem.data_type, counts[OUTPUT[pass_]])).all()
    for buffer in buffers.values():
        assert not buffer.is_damaged()
        buffer.release()
