"""Convolutions on tensors that lie against inaccessible pages."""

import numpy as np
from reference import IMPLICIT_GEMM, OUTPUT

from mucudnn._native import Engine, Problem
from mucudnn.problems.kernels import Kernel
from tests.drop_in.guarded_memory import GuardedBuffer


def assert_keeps_to_its_tensors(
    engine: Engine, problem: Problem, pass_: str, *, beta: float, at_end: bool, algorithm: str = ""
) -> None:
    """Run an algorithm, by default implicit GEMM, whose tensors end, or begin, at an inaccessible page."""
    counts = {"x": problem.x_elements, "w": problem.w_elements, "y": problem.y_elements}
    buffers = {
        name: GuardedBuffer(count * problem.element_size, at_end=at_end) for name, count in counts.items()
    }
    memory = {name: engine.borrow(buffer.address, buffer.size) for name, buffer in buffers.items()}
    for seed, (name, count) in enumerate(counts.items()):
        memory[name].fill_random(problem.data_type, count, seed)
    kernel, parts = Kernel(problem, pass_), [(problem.mini_batch, algorithm or IMPLICIT_GEMM[pass_])]
    workspace = engine.allocate(engine.prepare(kernel, parts).workspace)
    engine.execute(kernel, parts, *memory.values(), workspace, beta=beta)
    assert np.isfinite(memory[OUTPUT[pass_]].read(problem.data_type, counts[OUTPUT[pass_]])).all()
    for buffer in buffers.values():
        assert not buffer.is_damaged()
        buffer.release()
