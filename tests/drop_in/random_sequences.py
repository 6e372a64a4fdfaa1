"""Random sequences of calls: a state machine over the descriptors and handles of both APIs.

The calls have no sensible order. A program creates, sets, finalizes, initializes, reads, executes and
destroys any descriptors, of the right kind or not. Each attribute has few values, so that some executions
succeed. A program keeps the preconditions of the API: no call gets a destroyed descriptor, and each buffer
holds the largest tensor.
"""

from random import Random

from graph_operations import UIDS, packed_strides
from graph_writer import GraphWriter
from scripts import Allocate, Argument, Call, Fill, Refill, Script, Step
from shim_client import NAMES, shapes

from mucudnn._native import Problem

SHAPE = {"in_channels": 2, "out_channels": 3, "input": (6, 5), "kernel": (3, 3), "padding": 1}
BATCHES = (1, 4, 6)
ROOM = 1 << 16  # bytes, for each tensor and for the workspace
FIRST = ("FORWARD", "BWD_DATA", "BWD_FILTER")
OPERATIONS = {
    "FORWARD": ("OPERATION_CONVOLUTION_FORWARD", ("X", "W", "Y"), "y"),
    "BWD_DATA": ("OPERATION_CONVOLUTION_BACKWARD_DATA", ("DX", "W", "DY"), "x"),
    "BWD_FILTER": ("OPERATION_CONVOLUTION_BACKWARD_FILTER", ("X", "DW", "DY"), "w"),
}
KINDS = (
    "TENSOR", "CONVOLUTION", *(kind for kind, *_ in OPERATIONS.values()), "OPERATIONGRAPH", "ENGINE",
    "ENGINECFG", "ENGINEHEUR", "EXECUTION_PLAN", "VARIANT_PACK",
)  # fmt: skip
REFERENCES = {
    "OPERATIONGRAPH": ("OPERATIONGRAPH_OPS", [kind for kind, *_ in OPERATIONS.values()]),
    "ENGINE": ("ENGINE_OPERATION_GRAPH", ["OPERATIONGRAPH"]),
    "ENGINECFG": ("ENGINECFG_ENGINE", ["ENGINE"]),
    "ENGINEHEUR": ("ENGINEHEUR_OPERATION_GRAPH", ["OPERATIONGRAPH"]),
    "EXECUTION_PLAN": ("EXECUTION_PLAN_ENGINE_CONFIG", ["ENGINECFG"]),
}


class Sequence:
    """The writer of one random sequence."""

    def __init__(self, seed: int | str) -> None:
        self.random = Random(f"sequence {seed}")
        self.script = Script()
        self.write_ = GraphWriter(self.script)
        self.slots: dict[str, list[str]] = {kind: [] for kind in KINDS}
        self.tensors: dict[str, list[str]] = {name: [] for name in "xwy"}
        self.nonsense = self.random.choice((0.0, 0.02, 0.1))  # the probability of a wrong descriptor
        self.legacy: list[int] = []  # the mini-batches that have legacy descriptors
        self.sizes: dict[tuple[str, int, int], list[str]] = {}

    def write(self) -> list[Step]:
        self.script.call("cudnnCreate", ("new", "handle"))
        for name in "xwy":
            self.script.add(Allocate(name, ("fixed", ROOM), Fill("random", "f32", ord(name))))
        actions = (
            (self._build, 6), (self._step, 10), (self._legacy_call, 4), (self._run_plan, 5),
        )  # fmt: skip
        chosen, weights = zip(*actions, strict=True)
        self._build()
        for _ in range(self.random.randint(10, 40)):
            self.random.choices(chosen, weights)[0]()
        for _ in range(3):
            self._run_plan()
        return self.script.steps

    def _pick(self, kinds: list[str]) -> str | None:
        if self.random.random() < self.nonsense:
            kinds = list(KINDS)
        slots = [slot for kind in kinds for slot in self.slots[kind]]
        # Prefer the latest two, which are most likely complete.
        return self.random.choice(slots[-2:] if self.random.random() < 0.7 else slots) if slots else None

    def _problem(self) -> Problem:
        return Problem(mini_batch=self.random.choice(BATCHES), **SHAPE)

    # --- the graph API ---

    def _create(self, kind: str) -> str:
        slot = self.write_.create(kind)
        self.slots[kind].append(slot)
        return slot

    def _describe(self, slot: str, name: str, problem: Problem) -> None:
        sizes = shapes(problem)[name]
        self.write_.describe_tensor(slot, UIDS[name], sizes, packed_strides(sizes, "nchw"), "f32")

    def _set_convolution(self, slot: str) -> None:
        self.write_.set(slot, "CONVOLUTION_SPATIAL_DIMS", "INT64", [2])
        self.write_.set(slot, "CONVOLUTION_COMP_TYPE", "DATA_TYPE", [0])
        self.write_.set(slot, "CONVOLUTION_CONV_MODE", "CONVOLUTION_MODE", [1])
        for name, value in (
            ("PRE_PADDINGS", 1),
            ("POST_PADDINGS", 1),
            ("DILATIONS", 1),
            ("FILTER_STRIDES", 1),
        ):
            self.write_.set(slot, f"CONVOLUTION_{name}", "INT64", [value, value])

    def _build(self) -> None:
        """Build a whole graph up to its plan. Leave some steps out, and do or undo others twice."""
        problem, pass_ = self._problem(), self.random.choice(FIRST)
        for name in "xwy":
            if self.tensors[name] and self.random.random() < 0.3:
                slot = self.random.choice(self.tensors[name])
                if self.random.random() < 0.5:
                    self.write_.initialize(slot)
                    self._describe(slot, name, problem)
            else:
                slot = self._create("TENSOR")
                self.tensors[name].append(slot)
                self._describe(slot, name, problem)
            self._finalize(slot)
        convolution = self._create("CONVOLUTION")
        self._set_convolution(convolution)
        self._finalize(convolution)
        kind, *_ = OPERATIONS[pass_]
        operation = self._create(kind)
        self._set_operation(operation, pass_)
        self._finalize(operation)
        for made in ("OPERATIONGRAPH", self.random.choice(("ENGINE", "ENGINEHEUR"))):
            self._finalize(self._refer(self._create(made)))
        config = self._create("ENGINECFG")
        if self.slots["ENGINEHEUR"] and self.random.random() < 0.5:
            self.write_.get_into(self.slots["ENGINEHEUR"][-1], "ENGINEHEUR_RESULTS", [config])
        else:
            self._finalize(self._refer(config))
        self._finalize(self._refer(self._create("EXECUTION_PLAN")))

    def _finalize(self, slot: str) -> None:
        if self.random.random() < 0.03:
            return
        self.write_.finalize(slot)
        if self.random.random() < 0.03:
            self.write_.finalize(slot)

    def _kind(self, slot: str) -> str:
        return next(kind for kind, slots in self.slots.items() if slot in slots)

    def _set_operation(self, slot: str, pass_: str) -> None:
        _, attributes, _ = OPERATIONS[pass_]
        prefix = f"OPERATION_CONVOLUTION_{pass_}_"
        for name, attribute in zip("xwy", attributes, strict=True):
            if self.tensors[name]:
                tensor = self.tensors[name][-1]
                if self.random.random() < self.nonsense:
                    tensor = self._pick(["TENSOR"]) or tensor
                self.write_.refer(slot, prefix + attribute, tensor)
        if self.slots["CONVOLUTION"]:
            self.write_.refer(slot, prefix + "CONV_DESC", self.slots["CONVOLUTION"][-1])
        if self.random.random() < 0.3:
            self.write_.set(slot, prefix + "ALPHA", "FLOAT", [self.random.choice((0.5, -1.0))])
            self.write_.set(slot, prefix + "BETA", "FLOAT", [self.random.choice((0.0, 1.0))])

    def _refer(self, slot: str) -> str:
        """Set the references and the numbers of a descriptor."""
        kind = self._kind(slot)
        attribute, kinds = REFERENCES[kind]
        other = self._pick(kinds)
        if other is not None:
            self.write_.refer(slot, attribute, other)
        if kind == "ENGINE":
            self.write_.set(slot, "ENGINE_GLOBAL_INDEX", "INT64", [self.random.choice((0, 0, 1, 1, 2, 5, 7))])
        elif kind == "ENGINEHEUR":
            self.write_.set(slot, "ENGINEHEUR_MODE", "HEUR_MODE", [self.random.choice((0, 1, 2, 3))])
        elif kind in ("EXECUTION_PLAN", "OPERATIONGRAPH"):
            self.write_.set(slot, f"{kind}_HANDLE", "HANDLE", [("slot", "handle")])
        return slot

    def _step(self) -> None:
        """Make one call on one descriptor."""
        slot = self._pick(list(KINDS))
        if slot is None:
            return
        kind, choice = self._kind(slot), self.random.randrange(10)
        if choice == 0:
            self._destroy(slot)
        elif choice == 1:
            self.write_.initialize(slot)
        elif choice < 4:
            self.write_.finalize(slot)
        elif choice < 7:
            self._set_something(slot, kind)
        else:
            self._get_something(slot, kind)

    def _destroy(self, slot: str) -> None:
        self.write_.destroy(slot)
        for slots in (*self.slots.values(), *self.tensors.values()):
            if slot in slots:
                slots.remove(slot)

    def _set_something(self, slot: str, kind: str) -> None:
        if kind == "TENSOR":
            names = [name for name, slots in self.tensors.items() if slot in slots]
            self._describe(slot, names[0] if names else "x", self._problem())
        elif kind == "CONVOLUTION":
            self._set_convolution(slot)
        elif kind in REFERENCES:
            self._refer(slot)
        elif kind == "VARIANT_PACK":
            self.write_.set(slot, "VARIANT_PACK_WORKSPACE", "VOID_PTR", [("buffer", "scratch")])
        else:
            pass_ = next(name for name, (its, *_) in OPERATIONS.items() if its == kind)
            self._set_operation(slot, pass_)

    def _get_something(self, slot: str, kind: str) -> None:
        key = self.script.name("read")
        if kind == "EXECUTION_PLAN" and self.random.random() < 0.4:
            config = self._pick(["ENGINECFG"])
            if config is not None:
                self.write_.get_into(slot, "EXECUTION_PLAN_ENGINE_CONFIG", [config])
        elif kind == "ENGINECFG":
            engine = self._pick(["ENGINE"])
            if engine is not None and self.random.random() < 0.5:
                self.write_.get_into(slot, "ENGINECFG_ENGINE", [engine])
            else:
                self.write_.config_workspace(slot, f"size:{key}")
        elif kind == "ENGINEHEUR":
            configs = self.random.sample(self.slots["ENGINECFG"], min(2, len(self.slots["ENGINECFG"])))
            if configs:
                self.write_.get_into(slot, "ENGINEHEUR_RESULTS", configs)
        elif kind == "ENGINE":
            self.write_.get(slot, "ENGINE_GLOBAL_INDEX", "INT64", key)
        else:
            self.write_.get(slot, "TENSOR_UNIQUE_ID", "INT64", key)

    def _run_plan(self) -> None:
        plan = self._pick(["EXECUTION_PLAN"])
        if plan is None:
            return
        writer, script, random = self.write_, self.script, self.random
        key, scratch = script.name("size:"), script.name("scratch")
        writer.plan_workspace(plan, key)
        script.add(Allocate(scratch, ("first", (key,)), Fill("scratch"), alignment=1))
        pack = self._pick(["VARIANT_PACK"]) if random.random() < 0.1 else None
        if pack is None:
            pack = self._create("VARIANT_PACK")
        else:
            writer.initialize(pack)
        writer.set(pack, "VARIANT_PACK_UNIQUE_IDS", "INT64", [UIDS[name] for name in "xwy"])
        writer.set(pack, "VARIANT_PACK_DATA_POINTERS", "VOID_PTR", [("buffer", name) for name in "xwy"])
        writer.set(pack, "VARIANT_PACK_WORKSPACE", "VOID_PTR", [("buffer", scratch)])
        self._finalize(pack)
        self._execute("cudnnBackendExecute", ("slot", "handle"), ("slot", plan), ("slot", pack))
        self._destroy(pack)

    def _execute(self, function: str, *arguments: Argument) -> None:
        """Make a call that may write x, w or y. Fill all three before it."""
        for name in "xwy":
            self.script.add(Refill(name, Fill("random", "f32", ord(name))))
        self.script.add(Call(function, arguments, outputs=("x", "w", "y"), type_="f32"))

    # --- the legacy API ---

    def _legacy_call(self) -> None:
        random, script = self.random, self.script
        if not self.legacy:
            script.call("cudnnCreateFilterDescriptor", ("new", "legacy w"))
            script.call("cudnnCreateConvolutionDescriptor", ("new", "legacy c"))
            for name in "xy":
                script.call("cudnnCreateTensorDescriptor", ("new", f"legacy {name}"))
            self._set_legacy()
        choice = random.randrange(6)
        if choice == 0:
            self._set_legacy()
            return
        pass_ = random.choice(tuple(NAMES))
        x, w, c, y = (("slot", f"legacy {name}") for name in "xwcy")
        descriptors = {
            "forward": (x, w, c, y), "backward_data": (w, y, c, x), "backward_filter": (x, y, c, w),
        }[pass_]  # fmt: skip
        algorithm = random.choice((0, 0, 1, 1, 2, 5, 7))
        known = self.sizes.setdefault((pass_, self.legacy[-1], algorithm), [])
        if choice < 3:
            key = script.name("size:")
            known.append(key)
            script.call(
                f"cudnnGetConvolution{NAMES[pass_]}WorkspaceSize", ("slot", "handle"), *descriptors,
                ("int", algorithm), ("out", key, "INT64", 1),
            )  # fmt: skip
            return
        scratch = script.name("scratch")
        script.add(Allocate(scratch, ("last", tuple(known)), Fill("scratch"), alignment=1))
        operands = {name: (("slot", f"legacy {name}"), ("buffer", name)) for name in "xwy"}
        order = {"forward": "xwy", "backward_data": "wyx", "backward_filter": "xyw"}[pass_]
        first, second, output = (operands[name] for name in order)
        self._execute(
            f"cudnnConvolution{NAMES[pass_]}", ("slot", "handle"), ("scale", 1.0, False), *first, *second, c,
            ("int", algorithm), ("buffer", scratch), ("size", scratch), ("scale", 0.0, False), *output,
        )  # fmt: skip

    def _set_legacy(self) -> None:
        problem, script = self._problem(), self.script
        self.legacy.append(problem.mini_batch)
        sizes = shapes(problem)
        for name in "xy":
            script.call(
                "cudnnSetTensorNdDescriptorEx", ("slot", f"legacy {name}"), ("int", 0), ("int", 0),
                ("int", 4), ("ints", sizes[name]),
            )  # fmt: skip
        script.call(
            "cudnnSetFilterNdDescriptor", ("slot", "legacy w"), ("int", 0), ("int", 0), ("int", 4),
            ("ints", sizes["w"]),
        )  # fmt: skip
        script.call(
            "cudnnSetConvolutionNdDescriptor", ("slot", "legacy c"), ("int", 2), ("ints", (1, 1)),
            ("ints", (1, 1)), ("ints", (1, 1)), ("int", 1), ("int", 0),
        )  # fmt: skip


def sequence_program(seed: int | str) -> list[Step]:
    return Sequence(seed).write()
