"""The least memory with which a training step can run."""

from __future__ import annotations

import numpy as np

from ..workspace.configuration import Infeasible
from .fluid_program import FluidProgram
from .simulation import KEEP, OFFLOAD, Codes, Simulator
from .training import TrainingStep

NODES = 1000  # HiGHS visits at most this many nodes of its search tree


def find_floor(work: TrainingStep, *, offload: bool = True, recompute: bool = True) -> tuple[int, Codes]:
    """Return the least memory with which a choice can run with the least workspaces, and that choice.

    The floor is exact to the byte if all tensors can be offloaded to host memory, or if nothing may be
    offloaded or recomputed. Otherwise HiGHS finds it: the bytes are always enough, and within about 1e-6 of
    the least unless the solver stops after NODES nodes.
    """
    simulator = Simulator(work)
    codes = np.where(simulator.can_leave & offload, OFFLOAD, KEEP).astype(np.int8)
    if not (simulator.fits_host(codes) and (offload or not recompute)):
        program = FluidProgram(simulator, None, offload=offload, recompute=recompute, is_whole=True)
        program.solve(NODES, mip_rel_gap=0, mip_abs_gap=0)
        chosen = program.choose()
        if chosen is None or not simulator.fits_host(chosen):
            chosen = np.full(len(codes), KEEP, dtype=np.int8)
        codes = chosen
    least = np.zeros(len(work.kernels), dtype=np.int64)
    return int(simulator.profile(codes, least).max(initial=0)), codes


def check_floor(memory: int, floor: int) -> None:
    """Raise Infeasible if the memory is below the floor."""
    if memory < floor:
        raise Infeasible(
            f"the training step does not fit {memory} bytes: the least that it can run with is {floor} bytes",
            limit=memory,
            need=floor,
        )
