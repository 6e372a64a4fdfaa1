"""The engine of each device of arrays, and the workspaces that its calls share."""

from collections import defaultdict
from collections.abc import Callable
from functools import cache

from mucudnn import settings
from mucudnn._native import Engine, Memory
from mucudnn.arrays import views
from mucudnn.arrays.call import PassCall
from mucudnn.errors import NoEngineError, NothingFitsError, UsageError
from mucudnn.measuring.engines import open_engine
from mucudnn.sizes import format_size


class ArrayDevice:
    """An engine, with workspaces that finished calls left for the next calls on the same stream.

    A stream has as many workspaces as calls have run on it at once, each as large as its largest call.
    On a GPU, the allocator of PyTorch or CuPy lends the workspace for their arrays, so that the library
    counts these bytes as its own and can use them between two calls.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # No lock is needed, because pop and append are atomic. A call may hand its workspace on before the
        # GPU is done with it, because the next call on the same stream runs after it.
        self._free: defaultdict[int, list[Memory]] = defaultdict(list)

    def run(self, run: Callable[[Memory | None], None], size: int, stream: int, owner: object) -> None:
        """Run work on a stream, with `size` bytes of workspace that no other call uses meanwhile.

        The library of `owner`, one of the arrays, may lend the workspace. Raises NothingFitsError if there is
        no memory for it.
        """
        if not size:
            run(None)
            return
        free = self._free[stream]
        try:
            lent = views.allocate_scratch(owner, size) if self.engine.kind == "cudnn" else None
            workspace = self._take(free, size) if lent is None else self.engine.borrow(lent[0], size)
        except MemoryError:
            raise NothingFitsError(f"there is no memory for a workspace of {format_size(size)}") from None
        try:
            run(workspace)
        finally:
            if lent is None:
                free.append(workspace)

    def check_stream(self, stream: int) -> None:
        """Raise UsageError if the stream captures a CUDA graph."""
        if self.engine.is_capturing(stream):
            raise UsageError(
                "a CUDA graph is being captured, and it would keep a workspace that is not its own: make "
                "the call outside of the capture, or start the program with `mucudnn run`, which divides "
                "captured calls"
            )

    def _take(self, free: list[Memory], size: int) -> Memory:
        try:
            workspace = free.pop()
            if workspace.size >= size:
                return workspace
            del workspace  # frees it, because there may not be memory for it and the larger workspace
        except IndexError:  # no workspace is free
            pass
        return self.engine.allocate(size)


def device_named(name: str, threads: int | None = None, constant_filters: bool = False) -> ArrayDevice:
    """Return the device of a name: `cpu` for the host engine, such as `cuda:0` for cuDNN.

    The host engine runs on `threads` threads; None stands for MUCUDNN_THREADS. With `constant_filters` it
    measures runs with kept filters. Raises NoEngineError, and UsageError if that variable cannot be read.
    """
    if name != "cpu":
        return _cuda_device(name)
    return _host_device((settings.THREADS.read() or 1) if threads is None else threads, constant_filters)


def device_of(call: PassCall) -> ArrayDevice:
    """Return the device that runs a call. Raises NoEngineError, UsageError."""
    return device_named(call.device, call.threads, call.constant_filter)


@cache
def _host_device(threads: int, constant_filters: bool) -> ArrayDevice:
    return ArrayDevice(open_engine("host", threads, constant_filters=constant_filters))


@cache
def _cuda_device(name: str) -> ArrayDevice:
    if not name.startswith("cuda:"):
        raise NoEngineError(f"there is no engine for arrays on {name}")
    try:
        engine = open_engine("cudnn", 1)
    except NoEngineError as error:
        raise NoEngineError(f"there is no engine for arrays on {name}: {error}") from None
    if name != f"cuda:{engine.device_number}":
        raise NoEngineError(
            f"the arrays are on {name}, but the current CUDA device is cuda:{engine.device_number}: "
            f"make {name} the current device"
        )
    return ArrayDevice(engine)
