"""The engine of each device that arrays lie on, and the workspaces that its calls share."""

from functools import cache

from mucudnn import settings
from mucudnn._native import Division, Engine, Memory
from mucudnn.engines import open_engine
from mucudnn.errors import NoEngineError


class Device:
    """An engine with the workspaces of calls that are over, kept for the next ones.

    There are as many as calls ran at a time, each as large as the most that one of its calls needed.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._free: list[Memory] = []  # taking and giving back are atomic, so no lock

    def run(self, division: Division, x: int, w: int, y: int, size: int, alpha: float, beta: float) -> None:
        """Run on addresses, with `size` bytes of workspace that no other call uses meanwhile."""
        if not size:
            division.run(x, w, y, None, alpha, beta)
            return
        workspace = self._take(size)
        try:
            division.run(x, w, y, workspace, alpha, beta)
        finally:
            self._free.append(workspace)

    def _take(self, size: int) -> Memory:
        try:
            workspace = self._free.pop()
        except IndexError:
            return self.engine.allocate(size)
        if workspace.size >= size:
            return workspace
        del workspace  # first, so that the two never exist side by side
        return self.engine.allocate(size)


@cache
def device_named(name: str) -> Device:
    """`cpu` is the host engine. Raises NoEngineError for what has none."""
    if name != "cpu":
        raise NoEngineError(
            f"there is no engine for arrays on {name}: this version computes on the CPU, move them there"
        )
    return Device(open_engine("host", settings.THREADS.read()))
