"""A program that plans a convolution by the graph API for a described GPU, and prints the execution plan.

It calls cuDNN's C functions through ctypes and uses nothing of mucudnn.
"""

import ctypes
import json
from collections.abc import Sequence

# Constants of cudnn_graph.h: descriptors, attributes, types of attributes.
CONVOLUTION, ENGINE, ENGINECFG, ENGINEHEUR, PLAN, FORWARD, GRAPH, TENSOR, DEVICE = (
    1,
    2,
    3,
    4,
    5,
    10,
    15,
    17,
    38,
)
DATA_TYPE, INT64, FLOAT, MODE, HEURISTIC, DESCRIPTOR, CHAR = 1, 3, 4, 7, 8, 15, 24
HALF, CROSS_CORRELATION, HEURISTIC_A = 2, 1, 3

# The published properties of an H100.
H100 = {
    "cudaDeviceId": 0,
    "deviceName": "NVIDIA H100 80GB HBM3",
    "deviceVer": 900,
    "driverVer": 13000,
    "isTccDriver": 0,
    "l2CacheSize": 50 * 2**20,
    "maxBlockSize": [1024, 1024, 64],
    "maxCtasPerSM": 32,
    "maxGridSize": [2**31 - 1, 65535, 65535],
    "maxRegistersPerSM": 65536,
    "maxSharedMemoryPerBlock": 48 * 1024,
    "maxSharedMemoryPerBlockOptin": 227 * 1024,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "memClockRateKHz": 2619000,
    "memoryBusWidth": 1,
    "multiProcessorCount": 132,
    "pciDeviceId": 0,
    "regsPerBlock": 65536,
    "reservedSharedMemoryPerBlock": 1024,
    "smClockRateKHz": 1980000,
    "supportCoopLaunch": 1,
    "totalGlobalMem": 80 * 2**30,
    "warpSize": 32,
}

cudnn = ctypes.CDLL("libcudnn.so.9")
Pointer = ctypes.c_void_p


def check(status: int) -> None:
    if status != 0:
        text = ctypes.create_string_buffer(1000)
        cudnn.cudnnGetLastErrorString(text, ctypes.c_size_t(len(text)))
        raise SystemExit(f"status {status}: {text.value.decode()}")


def create(kind: int) -> Pointer:
    descriptor = Pointer()
    check(cudnn.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor)))
    return descriptor


def set_(descriptor: Pointer, name: int, type_: int, values: Sequence[object], ctype: type) -> None:
    array = (ctype * len(values))(*values)
    check(cudnn.cudnnBackendSetAttribute(descriptor, name, type_, ctypes.c_int64(len(values)), array))


def set_integers(descriptor: Pointer, name: int, *values: int) -> None:
    set_(descriptor, name, INT64, values, ctypes.c_int64)


def set_descriptor(descriptor: Pointer, name: int, value: Pointer) -> None:
    set_(descriptor, name, DESCRIPTOR, [value.value], Pointer)


def finalize(descriptor: Pointer) -> Pointer:
    check(cudnn.cudnnBackendFinalize(descriptor))
    return descriptor


def get_integer(descriptor: Pointer, name: int) -> int:
    value, count = ctypes.c_int64(), ctypes.c_int64()
    check(
        cudnn.cudnnBackendGetAttribute(
            descriptor, name, INT64, ctypes.c_int64(1), ctypes.byref(count), ctypes.byref(value)
        )
    )
    return value.value


def get_descriptors(descriptor: Pointer, name: int, kind: int, capacity: int) -> list[Pointer]:
    created = [create(kind) for _ in range(capacity)]
    array, count = (Pointer * capacity)(*(item.value for item in created)), ctypes.c_int64()
    check(
        cudnn.cudnnBackendGetAttribute(
            descriptor, name, DESCRIPTOR, ctypes.c_int64(capacity), ctypes.byref(count), array
        )
    )
    return created[: count.value]


def tensor(identity: int, sizes: tuple[int, int, int, int]) -> Pointer:
    descriptor = create(TENSOR)
    _, c, h, w = sizes
    set_integers(descriptor, 900, 16)
    set_(descriptor, 901, DATA_TYPE, [HALF], ctypes.c_int)
    set_integers(descriptor, 902, *sizes)
    set_integers(descriptor, 903, c * h * w, h * w, w, 1)
    set_integers(descriptor, 906, identity)
    return finalize(descriptor)


def operation_graph(batch: int) -> Pointer:
    """Return the graph of a forward convolution: 3x3, 64 to 64 channels, 56 by 56, padding 1."""
    x, w, y = tensor(1, (batch, 64, 56, 56)), tensor(2, (64, 64, 3, 3)), tensor(3, (batch, 64, 56, 56))
    convolution = create(CONVOLUTION)
    set_(convolution, 100, DATA_TYPE, [0], ctypes.c_int)
    set_(convolution, 101, MODE, [CROSS_CORRELATION], ctypes.c_int)
    for name in (102, 103, 104, 105):  # dilations, strides, paddings after and before
        set_integers(convolution, name, 1, 1)
    set_integers(convolution, 106, 2)
    finalize(convolution)
    operation = create(FORWARD)
    set_(operation, 700, FLOAT, [1.0], ctypes.c_float)
    set_(operation, 701, FLOAT, [0.0], ctypes.c_float)
    for name, value in ((702, convolution), (703, w), (704, x), (705, y)):
        set_descriptor(operation, name, value)
    finalize(operation)
    graph = create(GRAPH)
    set_descriptor(graph, 801, operation)
    return finalize(graph)


def main() -> None:
    device = create(DEVICE)
    set_(device, 2702, CHAR, [*json.dumps(H100).encode(), 0], ctypes.c_char)
    finalize(device)
    for batch in (1, 16, 256):
        heuristic = create(ENGINEHEUR)
        set_(heuristic, 200, HEURISTIC, [HEURISTIC_A], ctypes.c_int)
        set_descriptor(heuristic, 201, operation_graph(batch))
        set_descriptor(heuristic, 204, device)
        finalize(heuristic)
        for configuration in get_descriptors(heuristic, 202, ENGINECFG, 5):
            (engine,) = get_descriptors(configuration, 300, ENGINE, 1)
            plan = create(PLAN)
            set_descriptor(plan, 401, configuration)
            set_descriptor(plan, 407, device)
            status = cudnn.cudnnBackendFinalize(plan)
            size = get_integer(plan, 402) if status == 0 else 0
            print(f"N={batch}: engine {get_integer(engine, 1301)}, status {status}, workspace {size}")


if __name__ == "__main__":
    main()
