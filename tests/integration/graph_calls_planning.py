"""A program that makes valid and invalid graphs, engines, heuristics, execution plans and variant packs.

The module graph_calls says how it prints the answers. NVIDIA's library plans for the description of a device,
which the host engine does not take.
"""

import json

from graph_calls import (
    ADD,
    DESCRIPTOR,
    FORWARD,
    OPERATIONS,
    PX,
    PY,
    RELU,
    Attributes,
    Pointer,
    Y,
    convolution,
    descriptors,
    get_descriptors,
    integers,
    library,
    make,
    make_tensor,
    print_answer,
    print_each_missing,
    print_statuses,
    print_values,
    w,
    x,
    y,
)
from shim_graph_client import H100

# --- graphs ---


def convolve(output: Pointer) -> Pointer:
    prefix, names = OPERATIONS[FORWARD]
    operation, statuses = make(
        FORWARD,
        {
            **{
                prefix + name: descriptors(tensor) for name, tensor in zip(names, (x, w, output), strict=True)
            },
            prefix + "CONV_DESC": descriptors(convolution),
        },
    )
    assert not any(statuses)
    return operation


def graph(*operations: Pointer | None) -> Attributes:
    return {"OPERATIONGRAPH_OPS": descriptors(*operations)}


forward = convolve(y)
between, last = make_tensor(10, *Y, virtual=True), make_tensor(11, *Y, virtual=True)
fused = [
    convolve(between),
    make("OPERATION_POINTWISE", ADD, **{PX: descriptors(between), PY: descriptors(last)})[0],
    make("OPERATION_POINTWISE", RELU, **{PX: descriptors(last)})[0],
]
_, open_operation = library.create("OPERATION_POINTWISE")
for label, operations in {
    "one convolution": [forward],
    "none": [],
    "what follows a convolution": fused,
    "in another order": fused[::-1],
    "an end that is virtual": fused[:1],
    "pointwise alone": fused[2:],
    "an operation twice": [forward, forward],
    "an open operation": [open_operation],
    "no operation": [None],
}.items():
    print_statuses(label, "OPERATIONGRAPH", graph(*operations))
print_statuses("nothing set", "OPERATIONGRAPH", {})
print_statuses("a wrong type", "OPERATIONGRAPH", {"OPERATIONGRAPH_OPS": integers(1)})
print_statuses(
    "dynamic shapes",
    "OPERATIONGRAPH",
    graph(forward),
    OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED=("BOOLEAN", [True]),
)
print_values(
    "OPERATIONGRAPH",
    graph(forward),
    [
        ("OPERATIONGRAPH_OPS", DESCRIPTOR, 1),
        ("OPERATIONGRAPH_HANDLE", "HANDLE", 1),
        ("OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED", "BOOLEAN", 1),
    ],
)

# --- engines, heuristics and plans ---

device: dict[str, Attributes] = {kind: {} for kind in ("ENGINE", "ENGINEHEUR", "EXECUTION_PLAN")}
status, described = library.create("DEVICEPROP")
if status == 0:
    text = json.dumps(H100).encode() + b"\0"
    characters = [text[i : i + 1] for i in range(len(text))]
    library.set(described, "DEVICEPROP_JSON_REPRESENTATION", "CHAR", characters)
    assert library.finalize(described) == 0, library.last_error()
    device = {kind: {f"{kind}_DEVICEPROP": descriptors(described)} for kind in device}


def with_device(kind: str, attributes: Attributes) -> Attributes:
    return {**device[kind], **attributes}


def print_planning(label: str, kind: str, attributes: Attributes) -> None:
    statuses = make(kind, with_device(kind, attributes))[1]
    print_answer(f"{kind} {label}", statuses[len(device[kind]) :])


planned, _ = make("OPERATIONGRAPH", graph(forward))
_, open_graph = library.create("OPERATIONGRAPH")
ENGINE: Attributes = {"ENGINE_OPERATION_GRAPH": descriptors(planned), "ENGINE_GLOBAL_INDEX": integers(0)}
for label, change in {
    "complete": {},
    "an index below 0": {"ENGINE_GLOBAL_INDEX": integers(-1)},
    "an index beyond": {"ENGINE_GLOBAL_INDEX": integers(9999)},
    "an open graph": {"ENGINE_OPERATION_GRAPH": descriptors(open_graph)},
    "a target below 0": {"ENGINE_SM_COUNT_TARGET": ("INT32", [-1])},
    "a wrong type of target": {"ENGINE_SM_COUNT_TARGET": integers(0)},
    "notes set": {"ENGINE_NUMERICAL_NOTE": ("NUMERICAL_NOTE", [0])},
}.items():
    print_planning(label, "ENGINE", {**ENGINE, **change})
print_planning("without an index", "ENGINE", {"ENGINE_OPERATION_GRAPH": descriptors(planned)})
engine, _ = make("ENGINE", with_device("ENGINE", ENGINE))
for name, type_, requested in (
    ("ENGINE_GLOBAL_INDEX", "INT64", 1),
    ("ENGINE_NUMERICAL_NOTE", "INT64", 10),
    ("ENGINE_BEHAVIOR_NOTE", "INT64", 10),
    ("ENGINE_LAYOUT_INFO", DESCRIPTOR, 0),
    ("ENGINE_SM_COUNT_TARGET", "INT32", 1),
):
    print_answer(f"ENGINE read {name} {type_}", library.get(engine, name, type_, requested))
print_answer(
    "ENGINE show its graph", get_descriptors(engine, "ENGINE_OPERATION_GRAPH", ["OPERATIONGRAPH"])[:2]
)

CHOICE: Attributes = {"KNOB_CHOICE_KNOB_TYPE": ("KNOB_TYPE", [2]), "KNOB_CHOICE_KNOB_VALUE": integers(1)}
print_each_missing("KNOB_CHOICE", CHOICE)
print_statuses("a wrong type", "KNOB_CHOICE", CHOICE, KNOB_CHOICE_KNOB_TYPE=integers(1))
print_statuses("a wrong type of value", "KNOB_CHOICE", CHOICE, KNOB_CHOICE_KNOB_VALUE=("INT32", [1]))
print_values("KNOB_CHOICE", CHOICE, [(name, type_, 1) for name, (type_, _) in CHOICE.items()])
print_statuses("nothing set", "KNOB_INFO", {})
print_statuses("a type set", "KNOB_INFO", {"KNOB_INFO_TYPE": ("KNOB_TYPE", [2])})

CONFIG: Attributes = {"ENGINECFG_ENGINE": descriptors(engine)}
_, open_engine = library.create("ENGINE")  # complete, but not finalized
for name, attribute in with_device("ENGINE", ENGINE).items():
    library.set(open_engine, name, *attribute)
_, open_choice = library.create("KNOB_CHOICE")
foreign_choice, _ = make("KNOB_CHOICE", CHOICE, KNOB_CHOICE_KNOB_TYPE=("KNOB_TYPE", [43]))
for label, change in {
    "complete": {},
    "no choices": {"ENGINECFG_KNOB_CHOICES": descriptors()},
    "a knob that the engine has not": {"ENGINECFG_KNOB_CHOICES": descriptors(foreign_choice)},
    "an open choice": {"ENGINECFG_KNOB_CHOICES": descriptors(open_choice)},
    "choices of a wrong type": {"ENGINECFG_KNOB_CHOICES": integers(1)},
}.items():
    print_statuses(label, "ENGINECFG", CONFIG, **change)
print_statuses("an open engine", "ENGINECFG", {"ENGINECFG_ENGINE": descriptors(open_engine)})
config, _ = make("ENGINECFG", CONFIG)
print_answer("ENGINECFG show its engine", get_descriptors(config, "ENGINECFG_ENGINE", ["ENGINE"])[:2])
print_answer(
    "ENGINECFG show its engine elsewhere", get_descriptors(config, "ENGINECFG_ENGINE", ["TENSOR"])[:2]
)
shown = get_descriptors(config, "ENGINECFG_ENGINE", ["ENGINE"])[2][0]
print_answer("ENGINECFG its engine's index", library.get(shown, "ENGINE_GLOBAL_INDEX", "INT64", 1))
print_answer("ENGINECFG finalize what was shown", library.finalize(shown))
for name, type_, requested in (
    ("ENGINECFG_SHARED_MEMORY_USED", "INT32", 1),
    ("ENGINECFG_KNOB_CHOICES", DESCRIPTOR, 0),
    ("ENGINECFG_INTERMEDIATE_INFO", DESCRIPTOR, 0),
    ("ENGINECFG_WORKSPACE_SIZE", "INT32", 1),
):
    print_answer(f"ENGINECFG read {name} {type_}", library.get(config, name, type_, requested))

# --- a knob: the tile size of the first engine that has one ---

TILE_SIZE = 2
INFO = (("TYPE", "KNOB_TYPE"), ("MINIMUM_VALUE", "INT64"), ("MAXIMUM_VALUE", "INT64"), ("STRIDE", "INT64"))


def tile_size_of(engine: Pointer) -> Pointer | None:
    """Return the engine's description of its tile-size knob, None if it has no such knob."""
    _, count, infos = get_descriptors(engine, "ENGINE_KNOB_INFO", ["KNOB_INFO"] * 20)
    for info in infos[: max(count, 0)]:
        if library.get(info, "KNOB_INFO_TYPE", "KNOB_TYPE", 1)[2] == [TILE_SIZE]:
            return info
    return None


for index in range(9):
    tiled, statuses = make(
        "ENGINE", with_device("ENGINE", {**ENGINE, "ENGINE_GLOBAL_INDEX": integers(index)})
    )
    tile_size = None if any(statuses) else tile_size_of(tiled)
    if tile_size:
        break
assert tile_size
for name, type_ in INFO:
    print_answer(f"KNOB_INFO {name}", library.get(tile_size, f"KNOB_INFO_{name}", type_, 1))
    print_answer(f"KNOB_INFO count {name}", library.get(tile_size, f"KNOB_INFO_{name}", type_, 0))
    print_answer(f"KNOB_INFO two of {name}", library.get(tile_size, f"KNOB_INFO_{name}", type_, 2))
    print_answer(f"KNOB_INFO wrong type of {name}", library.get(tile_size, f"KNOB_INFO_{name}", "INT32", 1))
print_answer("KNOB_INFO finalize", library.finalize(tile_size))
print_answer("KNOB_INFO set", library.set(tile_size, "KNOB_INFO_STRIDE", *integers(1)))
print_answer("ENGINE knobs as INT64", library.get(tiled, "ENGINE_KNOB_INFO", "INT64", 1))


def choice(value: int, type_: int = TILE_SIZE) -> Pointer:
    return make("KNOB_CHOICE", {CHOICE_TYPE: ("KNOB_TYPE", [type_]), CHOICE_VALUE: integers(value)})[0]


CHOICE_TYPE, CHOICE_VALUE = CHOICE
for label, chosen in {
    "the least": [choice(0)],
    "the most": [choice(4)],
    "above the most": [choice(5)],
    "far above": [choice(99999)],
    "left to the engine": [choice(-1)],
    "below that": [choice(-2)],
    "one twice": [choice(1), choice(1)],
    "one twice, differently": [choice(1), choice(2)],
    "another's besides": [choice(1), choice(1, 43)],
    "no knob at all": [choice(1, 999)],
}.items():
    configured, statuses = make(
        "ENGINECFG", {"ENGINECFG_ENGINE": descriptors(tiled), "ENGINECFG_KNOB_CHOICES": descriptors(*chosen)}
    )
    print_answer(f"ENGINECFG {label}", statuses)
    status, count, shown_choices = get_descriptors(configured, "ENGINECFG_KNOB_CHOICES", ["KNOB_CHOICE"] * 3)
    told = [library.get(choice, CHOICE_VALUE, "INT64", 1) for choice in shown_choices[: max(count, 0)]]
    print_answer(f"ENGINECFG {label}, as read", (status, count, told))
    print_answer(
        f"ENGINECFG {label}, counted", library.get(configured, "ENGINECFG_KNOB_CHOICES", DESCRIPTOR, 0)
    )
    with_plan = with_device("EXECUTION_PLAN", {"EXECUTION_PLAN_ENGINE_CONFIG": descriptors(configured)})
    plan, statuses = make("EXECUTION_PLAN", with_plan)
    print_answer(f"EXECUTION_PLAN {label}", statuses[len(device["EXECUTION_PLAN"]) :])
    of_plan = get_descriptors(plan, "EXECUTION_PLAN_ENGINE_CONFIG", ["ENGINECFG"])[2][0]
    print_answer(
        f"EXECUTION_PLAN {label}, its choices",
        get_descriptors(of_plan, "ENGINECFG_KNOB_CHOICES", ["KNOB_CHOICE"])[:2],
    )

configured, _ = make(
    "ENGINECFG", {"ENGINECFG_ENGINE": descriptors(tiled), "ENGINECFG_KNOB_CHOICES": descriptors(choice(3))}
)
plan, _ = make(
    "EXECUTION_PLAN", with_device("EXECUTION_PLAN", {"EXECUTION_PLAN_ENGINE_CONFIG": descriptors(configured)})
)
for mode in range(4):
    heuristics: Attributes = {
        "ENGINEHEUR_OPERATION_GRAPH": descriptors(planned),
        "ENGINEHEUR_MODE": ("HEUR_MODE", [mode]),
    }
    print_planning(f"mode {mode}", "ENGINEHEUR", heuristics)
print_planning("without a mode", "ENGINEHEUR", {"ENGINEHEUR_OPERATION_GRAPH": descriptors(planned)})
print_planning("without a graph", "ENGINEHEUR", {"ENGINEHEUR_MODE": ("HEUR_MODE", [0])})
print_planning("a wrong type of mode", "ENGINEHEUR", {"ENGINEHEUR_MODE": integers(0)})
print_planning("a wrong type of graph", "ENGINEHEUR", {"ENGINEHEUR_OPERATION_GRAPH": integers(0)})
for mode in (4, 0):
    asked, _ = make(
        "ENGINEHEUR", with_device("ENGINEHEUR", {**heuristics, "ENGINEHEUR_MODE": ("HEUR_MODE", [mode])})
    )
    print_answer(
        f"ENGINEHEUR has results in mode {mode}",
        library.get(asked, "ENGINEHEUR_RESULTS", DESCRIPTOR, 0)[1] > 0,
    )
status, count, results = get_descriptors(asked, "ENGINEHEUR_RESULTS", ["ENGINECFG", "ENGINECFG"])
print_answer("ENGINEHEUR two results", (status, count, [library.finalize(result) for result in results]))

PLAN = "EXECUTION_PLAN_ENGINE_CONFIG"
_, open_config = library.create("ENGINECFG")
library.set(open_config, "ENGINECFG_ENGINE", *CONFIG["ENGINECFG_ENGINE"])
for label, attributes in {
    "complete": {PLAN: descriptors(config)},
    "an open configuration": {PLAN: descriptors(open_config)},
    "a wrong type": {PLAN: integers(1)},
}.items():
    print_planning(label, "EXECUTION_PLAN", attributes)
plan, _ = make("EXECUTION_PLAN", with_device("EXECUTION_PLAN", {PLAN: descriptors(config)}))
print_answer("EXECUTION_PLAN show its configuration", get_descriptors(plan, PLAN, ["ENGINECFG"])[:2])
print_answer("EXECUTION_PLAN read its handle", library.get(plan, "EXECUTION_PLAN_HANDLE", "HANDLE", 1))
print_answer(
    "EXECUTION_PLAN workspace as INT32", library.get(plan, "EXECUTION_PLAN_WORKSPACE_SIZE", "INT32", 1)[0]
)
print_answer(
    "ENGINECFG an engine of a wrong type", library.set(open_config, "ENGINECFG_ENGINE", "INT64", [1])
)

# --- variant packs ---

PACK: Attributes = {
    "VARIANT_PACK_UNIQUE_IDS": integers(1, 2, 3),
    "VARIANT_PACK_DATA_POINTERS": ("VOID_PTR", [16, 32, 48]),
    "VARIANT_PACK_WORKSPACE": ("VOID_PTR", [64]),
}
print_each_missing("VARIANT_PACK", PACK)
for label, change in {
    "two addresses": {"VARIANT_PACK_DATA_POINTERS": ("VOID_PTR", [16, 32])},
    "an id twice": {"VARIANT_PACK_UNIQUE_IDS": integers(1, 1, 3)},
    "an address that is NULL": {"VARIANT_PACK_DATA_POINTERS": ("VOID_PTR", [16, None, 48])},
    "two workspaces": {"VARIANT_PACK_WORKSPACE": ("VOID_PTR", [None, None])},
    "a workspace of a wrong type": {"VARIANT_PACK_WORKSPACE": integers(64)},
    "ids of a wrong type": {"VARIANT_PACK_UNIQUE_IDS": ("INT32", [1, 2, 3])},
    "addresses of a wrong type": {"VARIANT_PACK_DATA_POINTERS": integers(1, 2, 3)},
    "no ids given": {"VARIANT_PACK_UNIQUE_IDS": integers()},
    "intermediates": {"VARIANT_PACK_INTERMEDIATES": descriptors()},
}.items():
    print_statuses(label, "VARIANT_PACK", PACK, **change)
print_values(
    "VARIANT_PACK",
    PACK,
    [(name, type_, requested) for name, (type_, _) in PACK.items() for requested in (1, 3)],
)
pack, _ = make("VARIANT_PACK", PACK)
for label, arguments in {"no handle": (None, plan, pack), "nothing": (None, None, None)}.items():
    print_answer(f"execute with {label}", library.dll.cudnnBackendExecute(*arguments))
