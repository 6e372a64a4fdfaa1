"""The engine of each device that arrays lie on, and the workspaces that its calls share."""

from collections import defaultdict
from functools import cache

from mucudnn import settings
from mucudnn._native import Division, Engine, Memory
from mucudnn.arrays import views as arrays
from mucudnn.errors import NoEngineError, NothingFitsError, UsageError
from mucudnn.measuring.engines import open_engine
from mucudnn.sizes import format_size


class Device:
    """An engine with the workspaces of calls that are over, kept for the next ones on the same stream.

    There are as many as calls ran at a time, each as large as the most that one of its calls needed. On a GPU
    the allocator of the arrays' own library gives them instead, if it is one that we know: it counts them,
    and has a use for them between two calls.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # Taking and giving back are atomic, so there is no lock. Where a call only puts work on a stream, the
        # next call on that stream comes after it.
        self._free: defaultdict[int, list[Memory]] = defaultdict(list)

    def run(
        self,
        division: Division,
        x: int,
        w: int,
        y: int,
        size: int,
        alpha: float,
        beta: float,
        stream: int,
        owner: object,
    ) -> None:
        """Run on addresses, with `size` bytes of workspace that no other call uses meanwhile.

        `owner` is one of the arrays.
        """
        if not size:
            division.run(x, w, y, None, alpha, beta, stream)
            return
        if self.engine.kind == "cudnn" and (lent := self._lent(owner, size)) is not None:
            division.run(x, w, y, self.engine.borrow(lent[0], size), alpha, beta, stream)
            return
        free = self._free[stream]
        workspace = self._take(free, size)
        try:
            division.run(x, w, y, workspace, alpha, beta, stream)
        finally:
            free.append(workspace)

    def check_stream(self, stream: int) -> None:
        """Raise UsageError where a call could not be put on the stream."""
        if self.engine.is_capturing(stream):
            raise UsageError(
                "a CUDA graph is being captured, which would keep memory that is not its own: make the call "
                "outside of it, or start the program with `mucudnn run`, which divides what a graph captures"
            )

    def _lent(self, owner: object, size: int) -> tuple[int, object] | None:
        try:
            return arrays.scratch(owner, size)
        except MemoryError:
            raise _no_memory(size) from None

    def _take(self, free: list[Memory], size: int) -> Memory:
        try:
            workspace = free.pop()
            if workspace.size >= size:
                return workspace
            del workspace  # first, so that the two never exist side by side
        except IndexError:  # none is free
            pass
        try:
            return self.engine.allocate(size)
        except MemoryError:
            raise _no_memory(size) from None


def _no_memory(size: int) -> NothingFitsError:
    return NothingFitsError(f"there is no memory for a workspace of {format_size(size)}")


def device_named(name: str, threads: int | None = None) -> Device:
    """`cpu` is the host engine, `cuda:0` cuDNN on the current CUDA device.

    The host engine has that many threads, without a number MUCUDNN_THREADS. Raises NoEngineError; UsageError
    where that cannot be read.
    """
    if name != "cpu":
        return _cuda_device(name)
    return _host_device(settings.THREADS.read() if threads is None else threads)


@cache
def _host_device(threads: int) -> Device:
    return Device(open_engine("host", threads))


@cache
def _cuda_device(name: str) -> Device:
    if not name.startswith("cuda:"):
        raise NoEngineError(f"there is no engine for arrays on {name}")
    try:
        engine = open_engine("cudnn", 1)
    except NoEngineError as error:
        raise NoEngineError(f"there is no engine for arrays on {name}: {error}") from None
    if name != f"cuda:{engine.device_number}":
        raise NoEngineError(
            f"arrays are on {name}, the current CUDA device is {engine.device_number}: make theirs current"
        )
    return Device(engine)
