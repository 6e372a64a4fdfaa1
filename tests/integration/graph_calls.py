"""graph_calls.py [engines]: makes valid and invalid descriptors of the graph API, and prints all answers.

It uses the libcudnn.so.9 that the loader finds. It makes each kind of descriptor whole, then with one
attribute after the other that is missing, of another type, too short or too long, and then with values that
do not fit.
NVIDIA's library plans for the description of a device, which the host engine does not take.
"""

import ctypes
import json
import re
import sys
from collections.abc import Mapping, Sequence

from graph_abi import CONSTANTS, Library

Attribute = tuple[str, Sequence[object]]  # type and values
Attributes = Mapping[str, Attribute | None]  # None omits the attribute
Pointer = ctypes.c_void_p
DESCRIPTOR = "BACKEND_DESCRIPTOR"
TILE_SIZE = 2  # a type of knobs
# The answers of NVIDIA's library that differ from call to call or from version to version.
ODD = re.compile(
    "(SPATIAL_DIMS|GLOBAL_INDEX) of another type|(CONV_MODE -?[0-9]|WORKSPACE as another type)"
    "|BACKWARD.* (another type|too short)"
)

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

library = Library("libcudnn.so.9")
described: dict[str, Attribute] = {}  # the device, by the kind of descriptor that takes it


def show(label: str, answer: object) -> None:
    if not ODD.search(label):
        print(f"{label}: {answer}", flush=True)


def fill(kind: str, attributes: Attributes) -> tuple[Pointer, list[int]]:
    """Make a descriptor without finalizing it. Return it with the statuses of setting its attributes."""
    _, descriptor = library.create(kind)
    if kind in described:
        library.set(descriptor, f"{kind}_DEVICEPROP", *described[kind])
    given = {name: attribute for name, attribute in attributes.items() if attribute}
    return descriptor, [library.set(descriptor, name, *attribute) for name, attribute in given.items()]


def opened(kind: str, attributes: Attributes) -> Pointer:
    return fill(kind, attributes)[0]


def make(kind: str, attributes: Attributes) -> tuple[Pointer, list[int]]:
    """Make a descriptor. Return it with the statuses of setting its attributes and of finalizing it."""
    descriptor, statuses = fill(kind, attributes)
    return descriptor, [*statuses, library.finalize(descriptor)]


def made(kind: str, attributes: Attributes) -> Pointer:
    descriptor, statuses = make(kind, attributes)
    assert not any(statuses), (kind, statuses, library.last_error())
    return descriptor


def integers(*values: int) -> Attribute:
    return "INT64", values


def descriptors(*descriptors: Pointer | None) -> Attribute:
    return DESCRIPTOR, descriptors


def other_type(type_: str) -> str:
    return "INT32" if type_ == "INT64" else "INT64"


def changed(attributes: Mapping[str, Attribute]) -> dict[str, Attributes]:
    """Return changes of each attribute, by a label."""
    changes: dict[str, Attributes] = {"complete": {}}
    for name, (type_, values) in attributes.items():
        ways: dict[str, Attribute | None] = {
            "missing": None,
            "of another type": (other_type(type_), [1] * len(values)),
            "too short": (type_, values[:-1]),
        }
        if type_ != DESCRIPTOR:
            ways["too long"] = type_, [*values, values[-1]]
        if type_ == "INT64":
            ways |= {"0": (type_, [0, *values[1:]]), "below 0": (type_, [-1, *values[1:]])}
        changes |= {f"{name} {label}": {name: way} for label, way in ways.items()}
    return changes


def show_kind(
    kind: str,
    attributes: Mapping[str, Attribute],
    more: Mapping[str, Attributes] | None = None,
    fixed: Mapping[str, Attribute] | None = None,
) -> Pointer:
    """Show the statuses of a descriptor and of its changes, and what it reads. Return the descriptor.

    `fixed` are attributes without which NVIDIA's library ends the process.
    """
    whole = {**(fixed or {}), **attributes}
    for label, change in {**changed(attributes), **(more or {})}.items():
        show(f"{kind} {label}", make(kind, {**whole, **change})[1])
    descriptor = made(kind, whole)
    for name, (type_, values) in attributes.items():
        if type_ != DESCRIPTOR:
            for requested in sorted({-1, 0, 1, len(values), len(values) + 2}):
                show(f"{kind} read {name} {requested}", library.get(descriptor, name, type_, requested))
            show(f"{kind} read {name} as another type", library.get(descriptor, name, other_type(type_), 1))
    return descriptor


def read_descriptors(descriptor: Pointer, name: str, kinds: Sequence[str]) -> tuple[int, int, list[Pointer]]:
    """Read into new descriptors of these kinds. Return status, count and the descriptors."""
    brought = [library.create(each)[1] for each in kinds]
    array, count = (ctypes.c_void_p * len(brought))(*brought), ctypes.c_int64(-7)
    status = library.dll.cudnnBackendGetAttribute(
        *(descriptor, CONSTANTS[f"ATTR_{name}"], CONSTANTS[f"TYPE_{DESCRIPTOR}"]),
        *(ctypes.c_int64(len(brought)), ctypes.byref(count), array),
    )
    return status, count.value, brought[: max(count.value, 0)]


def show_descriptors(kind: str, descriptor: Pointer, name: str, kinds: Sequence[str]) -> list[Pointer]:
    *answer, brought = read_descriptors(descriptor, name, kinds)
    show(f"{kind} {name} into {kinds}", answer)
    return brought


def tensor_of(uid: int, *sizes: int, **changes: Attribute) -> Pointer:
    strides = [1] * len(sizes)
    for axis in range(len(sizes) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * sizes[axis + 1]
    shape = {"TENSOR_DIMENSIONS": integers(*sizes), "TENSOR_STRIDES": integers(*strides)}
    return made("TENSOR", {**TENSOR, "TENSOR_UNIQUE_ID": integers(uid), **shape, **changes})


for number in (0, 1, 2, 3, 4, 5, 7, 8, 10, 11, 12, 13, 15, 16, 17):
    status, created = library.create(number)
    show(f"create {number}", (status, bool(created)))
    show(
        f"read {number} before it is finalized", library.get(created, "TENSOR_DATA_TYPE", "DATA_TYPE", 1)[:2]
    )
    show(f"initialize {number}", library.dll.cudnnBackendInitialize(created))
    show(f"destroy {number}", library.dll.cudnnBackendDestroyDescriptor(created))
nothing = Pointer()
show("destroy NULL", library.dll.cudnnBackendDestroyDescriptor(nothing))
show("initialize NULL", library.dll.cudnnBackendInitialize(nothing))
show("finalize NULL", library.finalize(nothing))
show("set NULL", library.set(nothing, "TENSOR_DATA_TYPE", "DATA_TYPE", [0]))
show("read NULL", library.get(nothing, "TENSOR_DATA_TYPE", "DATA_TYPE", 1)[0])

VIRTUAL: Attribute = ("BOOLEAN", [True])
HALF: Attribute = ("DATA_TYPE", [2])
TENSOR: dict[str, Attribute] = {
    "TENSOR_DATA_TYPE": ("DATA_TYPE", [0]),
    "TENSOR_DIMENSIONS": integers(2, 4, 8, 8),
    "TENSOR_STRIDES": integers(256, 64, 8, 1),
    "TENSOR_UNIQUE_ID": integers(5),
    "TENSOR_BYTE_ALIGNMENT": integers(16),
}
tensor = show_kind(
    "TENSOR",
    TENSOR,
    {
        "strides that overlap": {"TENSOR_STRIDES": integers(1, 1, 1, 1)},
        "one dimension": {"TENSOR_DIMENSIONS": integers(2), "TENSOR_STRIDES": integers(1)},
        "many dimensions": {"TENSOR_DIMENSIONS": integers(*[1] * 8), "TENSOR_STRIDES": integers(*[1] * 8)},
        "large dimensions": {"TENSOR_DIMENSIONS": integers(2**40, 2**20, 8, 8)},
        "an odd alignment": {"TENSOR_BYTE_ALIGNMENT": integers(3)},
        "an alignment below the type's": {"TENSOR_BYTE_ALIGNMENT": integers(2)},
        "half": {"TENSOR_DATA_TYPE": HALF, "TENSOR_BYTE_ALIGNMENT": integers(2)},
        "virtual": {"TENSOR_IS_VIRTUAL": VIRTUAL},
        "by value": {"TENSOR_IS_BY_VALUE": VIRTUAL},
        "vectorized": {"TENSOR_VECTOR_COUNT": integers(4), "TENSOR_VECTORIZED_DIMENSION": integers(1)},
        "vectorized beyond": {"TENSOR_VECTORIZED_DIMENSION": integers(7)},
        "an attribute of another kind": {"CONVOLUTION_COMP_TYPE": ("DATA_TYPE", [0])},
    },
)
for name, type_ in (
    ("TENSOR_IS_VIRTUAL", "BOOLEAN"),
    ("TENSOR_IS_BY_VALUE", "BOOLEAN"),
    ("TENSOR_VECTOR_COUNT", "INT64"),
    ("TENSOR_VECTORIZED_DIMENSION", "INT64"),
    ("CONVOLUTION_COMP_TYPE", "DATA_TYPE"),
):
    show(f"read {name}", library.get(tensor, name, type_, 1))
show("set an unknown attribute", library.set(tensor, 99999, "INT64", [1]))
show("read an unknown attribute", library.get(tensor, 99999, "INT64", 1)[0])
show("finalize twice", library.finalize(tensor))
show("set once finalized", library.set(tensor, "TENSOR_UNIQUE_ID", "INT64", [6]))
show("read into NULL", library.get(tensor, "TENSOR_DIMENSIONS", "INT64", 4, room=0))
open_tensor = opened("TENSOR", {})
for count in (-1, 1):
    show(f"set {count} of nothing", library.set(open_tensor, "TENSOR_DATA_TYPE", "DATA_TYPE", None, count))

CONVOLUTION: dict[str, Attribute] = {
    "CONVOLUTION_SPATIAL_DIMS": integers(2),
    "CONVOLUTION_COMP_TYPE": ("DATA_TYPE", [0]),
    "CONVOLUTION_CONV_MODE": ("CONVOLUTION_MODE", [1]),
    "CONVOLUTION_PRE_PADDINGS": integers(1, 1),
    "CONVOLUTION_POST_PADDINGS": integers(1, 1),
    "CONVOLUTION_DILATIONS": integers(1, 1),
    "CONVOLUTION_FILTER_STRIDES": integers(1, 1),
}
AFTER = {"CONVOLUTION_POST_PADDINGS": integers(2, 1)}
LINE: Attributes = {
    **{name: (type_, values[:1]) for name, (type_, values) in CONVOLUTION.items()},
    "CONVOLUTION_SPATIAL_DIMS": integers(1),
}
convolution = show_kind(
    "CONVOLUTION",
    CONVOLUTION,
    {
        "three dimensions": {"CONVOLUTION_SPATIAL_DIMS": integers(3)},
        "other paddings after": AFTER,
        "another compute type": {"CONVOLUTION_COMP_TYPE": ("DATA_TYPE", [9])},
    },
)

Y = (2, 6, 8, 8)
x, w, y = tensor_of(1, 2, 4, 8, 8), tensor_of(2, 6, 4, 3, 3), tensor_of(3, *Y)
OPERATIONS = {
    "FORWARD": ("OPERATION_CONVOLUTION_FORWARD_", ("X", "W", "Y")),
    "BACKWARD_DATA": ("OPERATION_CONVOLUTION_BWD_DATA_", ("DX", "W", "DY")),
    "BACKWARD_FILTER": ("OPERATION_CONVOLUTION_BWD_FILTER_", ("X", "DW", "DY")),
}
for pass_, (prefix, names) in OPERATIONS.items():
    X, W, OUT = (prefix + name for name in names)
    CONV, ALPHA, BETA = (prefix + name for name in ("CONV_DESC", "ALPHA", "BETA"))
    operation: dict[str, Attribute] = {
        X: descriptors(x),
        W: descriptors(w),
        OUT: descriptors(y),
        CONV: descriptors(convolution),
        ALPHA: ("FLOAT", [2.5]),
        BETA: ("FLOAT", [0.5]),
    }
    show_kind(
        f"OPERATION_CONVOLUTION_{pass_}",
        operation,
        {
            "a double alpha": {ALPHA: ("DOUBLE", [1.0])},
            "an open tensor": {X: descriptors(open_tensor)},
            "another width of y": {OUT: descriptors(tensor_of(3, 2, 6, 8, 7))},
            "other channels of y": {OUT: descriptors(tensor_of(3, 2, 5, 8, 8))},
            "another mini-batch of y": {OUT: descriptors(tensor_of(3, 3, 6, 8, 8))},
            "another rank of y": {OUT: descriptors(tensor_of(3, *Y, 1))},
            "another type of y": {OUT: descriptors(tensor_of(3, *Y, TENSOR_DATA_TYPE=HALF))},
            "channels that do not divide": {W: descriptors(tensor_of(2, 6, 5, 3, 3))},
            "two groups": {W: descriptors(tensor_of(2, 6, 2, 3, 3))},
            "groups that do not divide": {W: descriptors(tensor_of(2, 6, 1, 3, 3))},
            "one id twice": {OUT: descriptors(tensor_of(1, *Y))},
            "channels last": {
                X: descriptors(tensor_of(1, 2, 4, 8, 8, TENSOR_STRIDES=integers(256, 1, 32, 4)))
            },
            "gaps": {X: descriptors(tensor_of(1, 2, 4, 8, 8, TENSOR_STRIDES=integers(512, 64, 8, 1)))},
            "a convolution of one dimension": {CONV: descriptors(made("CONVOLUTION", LINE))},
            "other paddings after": {
                CONV: descriptors(made("CONVOLUTION", {**CONVOLUTION, **AFTER})),
                OUT: descriptors(tensor_of(3, 2, 6, 9, 8)),
            },
            "a virtual tensor": {X: descriptors(tensor_of(1, 2, 4, 8, 8, TENSOR_IS_VIRTUAL=VIRTUAL))},
        },
    )
    late = opened("TENSOR", TENSOR)
    early = opened(f"OPERATION_CONVOLUTION_{pass_}", {**operation, X: descriptors(late)})
    show(f"{pass_} of a tensor that is finalized later", (library.finalize(late), library.finalize(early)))

POINTWISE: dict[str, Attribute] = {
    "POINTWISE_MODE": ("POINTWISE_MODE", [CONSTANTS["POINTWISE_RELU_FWD"]]),
    "POINTWISE_MATH_PREC": ("DATA_TYPE", [0]),
    "POINTWISE_NAN_PROPAGATION": ("NAN_PROPOGATION", [1]),
    "POINTWISE_RELU_LOWER_CLIP": ("DOUBLE", [0.0]),
    "POINTWISE_RELU_UPPER_CLIP": ("DOUBLE", [6.0]),
    "POINTWISE_RELU_LOWER_CLIP_SLOPE": ("DOUBLE", [0.1]),
}
OTHERS: Attributes = {
    f"POINTWISE_{name}": ("DOUBLE", [1.0]) for name in ("ELU_ALPHA", "SOFTPLUS_BETA", "SWISH_BETA")
}
ADDS: Attributes = {"POINTWISE_MODE": ("POINTWISE_MODE", [CONSTANTS["POINTWISE_ADD"]])}
relu = show_kind("POINTWISE", POINTWISE, {"parameters of other functions": OTHERS})

PW, PX, PB, PY = (f"OPERATION_POINTWISE_{name}" for name in ("PW_DESCRIPTOR", "XDESC", "BDESC", "YDESC"))
FIRST, SECOND = "OPERATION_POINTWISE_ALPHA1", "OPERATION_POINTWISE_ALPHA2"
like_y, bias = tensor_of(1, *Y), tensor_of(4, 1, 6, 1, 1)
add = made("POINTWISE", {**POINTWISE, **ADDS})
RELU = {PW: descriptors(relu), PX: descriptors(like_y), PY: descriptors(y)}
ADD = {PW: descriptors(add), PX: descriptors(like_y), PB: descriptors(bias), PY: descriptors(y)}
show_kind("OPERATION_POINTWISE", RELU)
show_kind(
    "OPERATION_POINTWISE",
    ADD,
    {
        "a bias of other channels": {PB: descriptors(tensor_of(4, 1, 5, 1, 1))},
        "a bias of another rank": {PB: descriptors(tensor_of(4, 1, 6, 1))},
        "a bias as x": {PX: descriptors(bias), PB: descriptors(like_y)},
        "a bias of another type": {PB: descriptors(tensor_of(4, 1, 6, 1, 1, TENSOR_DATA_TYPE=HALF))},
        "a smaller y": {PY: descriptors(bias)},
        "an open tensor": {PB: descriptors(open_tensor)},
        "a float factor": {FIRST: ("FLOAT", [2.0])},
        "a double factor": {SECOND: ("DOUBLE", [2.0])},
        "an integer factor": {FIRST: integers(2)},
    },
)
show("read a factor", library.get(made("OPERATION_POINTWISE", ADD), FIRST, "FLOAT", 1))


def convolve(*each: Pointer) -> Pointer:
    """Return the convolution of x and w with the result y."""
    prefix, names = OPERATIONS["FORWARD"]
    tensors = {prefix + name: descriptors(tensor) for name, tensor in zip(names, each, strict=True)}
    return made("OPERATION_CONVOLUTION_FORWARD", {**tensors, f"{prefix}CONV_DESC": descriptors(convolution)})


def operations(*operations: Pointer | None) -> dict[str, Attribute]:
    return {"OPERATIONGRAPH_OPS": descriptors(*operations)}


forward = convolve(x, w, y)
between, last = (tensor_of(uid, *Y, TENSOR_IS_VIRTUAL=VIRTUAL) for uid in (10, 11))
fused = [
    convolve(x, w, between),
    made("OPERATION_POINTWISE", {**ADD, PX: descriptors(between), PY: descriptors(last)}),
    made("OPERATION_POINTWISE", {**RELU, PX: descriptors(last)}),
]
graph = show_kind(
    "OPERATIONGRAPH",
    operations(forward),
    {
        "what follows a convolution": operations(*fused),
        "in another order": operations(*fused[::-1]),
        "an end that is virtual": operations(*fused[:1]),
        "pointwise alone": operations(*fused[2:]),
        "an operation twice": operations(forward, forward),
        "an open operation": operations(opened("OPERATION_POINTWISE", {})),
        "no operation": operations(None),
        "dynamic shapes": {"OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED": VIRTUAL},
    },
)
for name, type_ in (("HANDLE", "HANDLE"), ("IS_DYNAMIC_SHAPE_ENABLED", "BOOLEAN")):
    show(f"OPERATIONGRAPH read {name}", library.get(graph, f"OPERATIONGRAPH_{name}", type_, 1))

status, device = library.create("DEVICEPROP")
if status == 0:
    text = json.dumps(H100).encode() + b"\0"
    library.set(device, "DEVICEPROP_JSON_REPRESENTATION", "CHAR", [*text])
    assert library.finalize(device) == 0, library.last_error()
    described = dict.fromkeys(("ENGINE", "ENGINEHEUR", "EXECUTION_PLAN"), descriptors(device))

OF_GRAPH = {"ENGINE_OPERATION_GRAPH": descriptors(graph)}
engine = show_kind(
    "ENGINE",
    {"ENGINE_GLOBAL_INDEX": integers(0)},
    {
        "an index beyond": {"ENGINE_GLOBAL_INDEX": integers(9999)},
        "an open graph": {"ENGINE_OPERATION_GRAPH": descriptors(opened("OPERATIONGRAPH", {}))},
        "a target below 0": {"ENGINE_SM_COUNT_TARGET": ("INT32", [-1])},
        "a wrong type of target": {"ENGINE_SM_COUNT_TARGET": integers(0)},
        "notes set": {"ENGINE_NUMERICAL_NOTE": ("NUMERICAL_NOTE", [0])},
    },
    OF_GRAPH,
)
for name, type_, requested in (
    ("NUMERICAL_NOTE", "INT64", 10),
    ("BEHAVIOR_NOTE", "INT64", 10),
    ("LAYOUT_INFO", DESCRIPTOR, 0),
    ("SM_COUNT_TARGET", "INT32", 1),
):
    show(f"ENGINE read {name}", library.get(engine, f"ENGINE_{name}", type_, requested))
show_descriptors("ENGINE", engine, "ENGINE_OPERATION_GRAPH", ["OPERATIONGRAPH"])

TYPE, VALUE = "KNOB_CHOICE_KNOB_TYPE", "KNOB_CHOICE_KNOB_VALUE"
show_kind("KNOB_CHOICE", {TYPE: ("KNOB_TYPE", [TILE_SIZE]), VALUE: integers(1)})
show("KNOB_INFO nothing set", make("KNOB_INFO", {})[1])
show("KNOB_INFO a type set", make("KNOB_INFO", {"KNOB_INFO_TYPE": ("KNOB_TYPE", [TILE_SIZE])})[1])


def choices(*knobs: tuple[int, int]) -> dict[str, Attribute]:
    """Return choices of knobs, by their types and values."""
    each = [
        made("KNOB_CHOICE", {TYPE: ("KNOB_TYPE", [type_]), VALUE: integers(value)}) for type_, value in knobs
    ]
    return {"ENGINECFG_KNOB_CHOICES": descriptors(*each)}


OF_ENGINE = {"ENGINECFG_ENGINE": descriptors(engine)}
open_engine = opened("ENGINE", {**OF_GRAPH, "ENGINE_GLOBAL_INDEX": integers(0)})
config = show_kind(
    "ENGINECFG",
    {},
    {
        "no choices": choices(),
        "a knob that the engine has not": choices((43, 1)),
        "an open choice": {"ENGINECFG_KNOB_CHOICES": descriptors(opened("KNOB_CHOICE", {}))},
        "choices of a wrong type": {"ENGINECFG_KNOB_CHOICES": integers(1)},
        "an open engine": {"ENGINECFG_ENGINE": descriptors(open_engine)},
    },
    OF_ENGINE,
)
show_descriptors("ENGINECFG", config, "ENGINECFG_ENGINE", ["TENSOR"])
[shown] = show_descriptors("ENGINECFG", config, "ENGINECFG_ENGINE", ["ENGINE"])
show("ENGINECFG its engine's index", library.get(shown, "ENGINE_GLOBAL_INDEX", "INT64", 1))
show("ENGINECFG finalize what was shown", library.finalize(shown))
for name, type_, requested in (
    ("SHARED_MEMORY_USED", "INT32", 1),
    ("KNOB_CHOICES", DESCRIPTOR, 0),
    ("INTERMEDIATE_INFO", DESCRIPTOR, 0),
    ("WORKSPACE_SIZE", "INT32", 1),
):
    show(f"ENGINECFG read {name}", library.get(config, f"ENGINECFG_{name}", type_, requested))


def tiled_engine() -> tuple[Pointer, Pointer]:
    """Return the first engine with a knob for the size of tiles, and its description of the knob."""
    for index in range(9):
        engine, statuses = make("ENGINE", {**OF_GRAPH, "ENGINE_GLOBAL_INDEX": integers(index)})
        for info in (
            [] if any(statuses) else read_descriptors(engine, "ENGINE_KNOB_INFO", ["KNOB_INFO"] * 20)[2]
        ):
            if library.get(info, "KNOB_INFO_TYPE", "KNOB_TYPE", 1)[2] == [TILE_SIZE]:
                return engine, info
    raise AssertionError("no engine has tiles")


tiled, tile_size = tiled_engine()
for name, type_ in (
    ("TYPE", "KNOB_TYPE"),
    ("MINIMUM_VALUE", "INT64"),
    ("MAXIMUM_VALUE", "INT64"),
    ("STRIDE", "INT64"),
):
    for requested in (0, 1, 2):
        show(f"KNOB_INFO {name} {requested}", library.get(tile_size, f"KNOB_INFO_{name}", type_, requested))
    show(f"KNOB_INFO {name} as INT32", library.get(tile_size, f"KNOB_INFO_{name}", "INT32", 1))
show("KNOB_INFO finalize", library.finalize(tile_size))
show("KNOB_INFO set", library.set(tile_size, "KNOB_INFO_STRIDE", *integers(1)))
show("ENGINE knobs as INT64", library.get(tiled, "ENGINE_KNOB_INFO", "INT64", 1))
OF_TILED = {"ENGINECFG_ENGINE": descriptors(tiled)}
for knobs in (
    *([(TILE_SIZE, size)] for size in (0, 4, 5, 99999, -1, -2)),
    [(TILE_SIZE, 1), (TILE_SIZE, 1)],
    [(TILE_SIZE, 1), (TILE_SIZE, 2)],
    [(TILE_SIZE, 1), (43, 1)],
    [(999, 1)],
):
    tiles, statuses = make("ENGINECFG", {**OF_TILED, **choices(*knobs)})
    show(f"ENGINECFG {knobs}", statuses)
    told = show_descriptors("ENGINECFG", tiles, "ENGINECFG_KNOB_CHOICES", ["KNOB_CHOICE"] * 3)
    show(f"ENGINECFG {knobs} as read", [library.get(each, VALUE, "INT64", 1) for each in told])
    show(f"ENGINECFG {knobs} counted", library.get(tiles, "ENGINECFG_KNOB_CHOICES", DESCRIPTOR, 0))
    plan, statuses = make("EXECUTION_PLAN", {"EXECUTION_PLAN_ENGINE_CONFIG": descriptors(tiles)})
    show(f"EXECUTION_PLAN {knobs}", statuses)
    for of_plan in read_descriptors(plan, "EXECUTION_PLAN_ENGINE_CONFIG", ["ENGINECFG"])[2]:
        show_descriptors("EXECUTION_PLAN", of_plan, "ENGINECFG_KNOB_CHOICES", ["KNOB_CHOICE"])

OF_HEURISTICS = {"ENGINEHEUR_OPERATION_GRAPH": descriptors(graph)}
show_kind(
    "ENGINEHEUR",
    {"ENGINEHEUR_MODE": ("HEUR_MODE", [0])},
    {
        **{f"mode {mode}": {"ENGINEHEUR_MODE": ("HEUR_MODE", [mode])} for mode in (1, 2, 3)},
        "a wrong type of graph": {"ENGINEHEUR_OPERATION_GRAPH": integers(0)},
        "without a graph": {"ENGINEHEUR_OPERATION_GRAPH": None},
    },
    OF_HEURISTICS,
)
for mode in (4, 0):
    asked, _ = make("ENGINEHEUR", {**OF_HEURISTICS, "ENGINEHEUR_MODE": ("HEUR_MODE", [mode])})
    has_results = library.get(asked, "ENGINEHEUR_RESULTS", DESCRIPTOR, 0)[1] > 0
    show(f"ENGINEHEUR has results in mode {mode}", has_results)
results = show_descriptors("ENGINEHEUR", asked, "ENGINEHEUR_RESULTS", ["ENGINECFG", "ENGINECFG"])
show("ENGINEHEUR finalize results", [library.finalize(result) for result in results])

CONFIG = "EXECUTION_PLAN_ENGINE_CONFIG"
open_config = opened("ENGINECFG", OF_ENGINE)
plan = show_kind(
    "EXECUTION_PLAN",
    {},
    {"an open configuration": {CONFIG: descriptors(open_config)}},
    {CONFIG: descriptors(config)},
)
show_descriptors("EXECUTION_PLAN", plan, CONFIG, ["ENGINECFG"])
show("EXECUTION_PLAN read its handle", library.get(plan, "EXECUTION_PLAN_HANDLE", "HANDLE", 1))
show("EXECUTION_PLAN workspace", library.get(plan, "EXECUTION_PLAN_WORKSPACE_SIZE", "INT32", 1)[0])
show("ENGINECFG an engine of a wrong type", library.set(open_config, "ENGINECFG_ENGINE", "INT64", [1]))


def show_engines(samples: int) -> None:
    """Show the engines that the heuristics name for a convolution in fp16, and the plans that they make."""
    sizes = (samples, 64, 56, 56), (64, 64, 3, 3), (samples, 64, 56, 56)
    tensors = (tensor_of(uid, *each, TENSOR_DATA_TYPE=HALF) for uid, each in enumerate(sizes, 1))
    asked = made(
        "ENGINEHEUR",
        {
            "ENGINEHEUR_OPERATION_GRAPH": descriptors(made("OPERATIONGRAPH", operations(convolve(*tensors)))),
            "ENGINEHEUR_MODE": ("HEUR_MODE", [3]),
        },
    )
    for result in read_descriptors(asked, "ENGINEHEUR_RESULTS", ["ENGINECFG"] * 5)[2]:
        [engine] = read_descriptors(result, "ENGINECFG_ENGINE", ["ENGINE"])[2]
        plan, statuses = make("EXECUTION_PLAN", {CONFIG: descriptors(result)})
        show(f"engine for {samples} samples", library.get(engine, "ENGINE_GLOBAL_INDEX", "INT64", 1))
        show("its plan", (statuses, library.get(plan, "EXECUTION_PLAN_WORKSPACE_SIZE", "INT64", 1)))


if "engines" in sys.argv:
    for samples in (1, 16, 256):
        show_engines(samples)

pack = show_kind(
    "VARIANT_PACK",
    {
        "VARIANT_PACK_UNIQUE_IDS": integers(1, 2, 3),
        "VARIANT_PACK_DATA_POINTERS": ("VOID_PTR", [16, 32, 48]),
        "VARIANT_PACK_WORKSPACE": ("VOID_PTR", [64]),
    },
    {
        "an id twice": {"VARIANT_PACK_UNIQUE_IDS": integers(1, 1, 3)},
        "an address that is NULL": {"VARIANT_PACK_DATA_POINTERS": ("VOID_PTR", [16, None, 48])},
        "no ids given": {"VARIANT_PACK_UNIQUE_IDS": integers()},
        "intermediates": {"VARIANT_PACK_INTERMEDIATES": descriptors()},
    },
)
for arguments in ((None, plan, pack), (None, None, None)):
    show("execute without a handle", library.dll.cudnnBackendExecute(*arguments))
