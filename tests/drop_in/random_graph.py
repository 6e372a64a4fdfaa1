"""Random programs of the graph API: graphs, engines, execution plans and variant packs.

Each program builds graphs like frameworks, and sometimes takes a liberty that the API allows: it destroys a
descriptor, initializes it again or fills it by GetAttribute while others refer to it. One of the answers
gives the size of the workspace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from random import Random

from graph_abi import CONSTANTS
from graph_operations import OPERATIONS, UIDS
from graph_writer import NUMBERS, GraphWriter
from random_legacy import packed_strides
from random_problems import GEMMS, PASSES, RUNNABLE, any_problem
from reference import EPILOGUES, OUTPUT, operand_shapes
from scripts import Allocate, Call, Choose, Fill, Refill, Script, Step, Threads, Work
from shim_client import shapes

from mucudnn._native import Problem, parse_descriptor

LARGEST = {"f32": 3.4028234663852886e38, "f64": 1.7976931348623157e308}
TILE_SIZE = 2  # the type of the knob
CAPS = (0, 1000, 5000, 20_000, 100_000, 1 << 20)


@dataclass
class Graph:
    """A graph of a program, and the convolution that it computes."""

    problem: Problem
    pass_: str
    alpha: float
    beta: float
    slot: str = ""
    is_exact: bool = True  # False if the script does not know the exact result


@dataclass
class Plan:
    """An execution plan, and the keys of the answers that name its workspace."""

    slot: str
    graph: Graph
    keys: list[str] = field(default_factory=list)
    cap: int | None = None  # the size of its workspace, if no answer gives it


class GraphProgram:
    """The writer of one random program."""

    def __init__(self, seed: int | str) -> None:
        self.random = Random(f"graph {seed}")
        self.script = Script()
        self.write_ = GraphWriter(self.script)
        self.configs: list[str] = []  # the slots of all configurations so far
        self.handle = "handle"
        # The probability with which the program takes a liberty.
        self.liberty = self.random.choice((0.0, 0.03, 0.1, 0.25))
        self.oddity = self.random.choice(
            (None,) * 32 + ("strided", "alignment", "uids", "flipped", "compute", "paddings", "virtual")
        )

    def write(self) -> list[Step]:
        self.script.call("cudnnCreate", ("new", self.handle))
        for _ in range(self.random.choice((1, 1, 2))):
            plans = self._plans(self._graph())
            for plan in self.random.sample(plans, len(plans)):
                self._ask(plan)
                for _ in range(self.random.choice((1, 1, 2))):
                    self._execute(plan)
                if self.random.random() < 0.07:
                    self._threads(plan)
        self.script.call("cudnnDestroy", ("slot", self.handle))
        return self.script.steps

    def _is_free(self) -> bool:
        return self.random.random() < self.liberty

    # --- changes to descriptors that others refer to ---

    def _disturb(self, slot: str, sizes: tuple[int, ...] | None = None) -> None:
        """Destroy a descriptor or initialize it again. Those that refer to it keep its old state."""
        if not self._is_free():
            return
        choice = self.random.randrange(4)
        if choice == 0:
            self.write_.destroy(slot)
        elif choice == 1:
            self.write_.initialize(slot)
        elif choice == 2 and sizes is not None:
            self.write_.initialize(slot)
            other = tuple(size + 1 for size in sizes)
            self.write_.describe_tensor(slot, 120, other, packed_strides(other, "nchw"), "f32")
            self.write_.finalize(slot)
        elif choice == 3 and sizes is not None:  # a finalized tensor refuses this
            self.write_.set(slot, "TENSOR_DIMENSIONS", "INT64", [1, 1, 1, 1])

    # --- graphs ---

    def _tensor(
        self, uid: int, sizes: tuple[int, ...], problem: Problem, *, type_: str = "", virtual: bool = False
    ) -> str:
        strides = packed_strides(sizes, problem.layout)
        alignment = 16
        if self.oddity == "strided" and uid == UIDS["x"]:
            strides = [2 * stride for stride in strides]
        if self.oddity == "alignment":
            alignment = problem.element_size
        if self.oddity == "uids" and uid == UIDS["w"]:
            uid = UIDS["x"]
        slot = self.write_.create("TENSOR")
        if self._is_free():  # set twice: the second value counts
            self.write_.describe_tensor(slot, uid + 1, (1, 2, 3, 4), (24, 12, 4, 1), "f32")
        self.write_.describe_tensor(
            slot, uid, sizes, strides, type_ or problem.data_type, virtual=virtual, alignment=alignment
        )
        if not (self.oddity == "virtual" and self.random.random() < 0.2):
            self.write_.finalize(slot)
        return slot

    def _convolution(self, problem: Problem) -> str:
        writer = self.write_
        slot = writer.create("CONVOLUTION")
        compute = "f64" if problem.data_type == "f64" else "f32"
        if self.oddity == "compute":
            compute = "f32" if compute == "f64" else "f16"
        after = [p + 1 for p in problem.padding] if self.oddity == "paddings" else problem.padding
        writer.set(slot, "CONVOLUTION_SPATIAL_DIMS", "INT64", [problem.dims])
        writer.set(slot, "CONVOLUTION_COMP_TYPE", "DATA_TYPE", [NUMBERS[compute]])
        mode = 0 if self.oddity == "flipped" else 1
        writer.set(slot, "CONVOLUTION_CONV_MODE", "CONVOLUTION_MODE", [mode])
        writer.set(slot, "CONVOLUTION_PRE_PADDINGS", "INT64", problem.padding)
        writer.set(slot, "CONVOLUTION_POST_PADDINGS", "INT64", after)
        writer.set(slot, "CONVOLUTION_DILATIONS", "INT64", problem.dilation)
        writer.set(slot, "CONVOLUTION_FILTER_STRIDES", "INT64", problem.stride)
        writer.finalize(slot)
        return slot

    def _graph(self) -> Graph:
        random, writer = self.random, self.write_
        # With equal uids x and w share their memory, which is allowed for inputs alone.
        passes = PASSES if self.oddity != "uids" else ("forward",)
        problem, pass_ = any_problem(random), random.choice(passes)
        alpha, beta = random.choice((1.0, 1.0, 1.0, 0.5, -1.0)), random.choice((0.0, 0.0, 0.0, 1.0, 0.5))
        if pass_ == "forward" and random.random() < 0.4:
            problem = parse_descriptor(f"{problem}{random.choice(EPILOGUES)}")[0]
            if random.random() < 0.9:
                alpha, beta = 1.0, 0.0
        wide, names = "f64" if problem.data_type == "f64" else "f32", problem.epilogue.split("+")[1:]
        sizes = shapes(problem)
        tensors = {name: self._tensor(UIDS[name], sizes[name], problem) for name in "xw"}
        between = [
            self._tensor(300 + place, sizes["y"], problem, type_=wide, virtual=True)
            for place in range(len(names))
        ]
        between.append(self._tensor(UIDS["y"], sizes["y"], problem))
        convolution = self._convolution(problem)
        kind, prefix, attributes = OPERATIONS[pass_]
        operation = writer.create(f"OPERATION_CONVOLUTION_{kind}")
        prefix = f"OPERATION_CONVOLUTION_{prefix}_"
        for attribute, tensor in zip(attributes, (tensors["x"], tensors["w"], between[0]), strict=True):
            writer.refer(operation, prefix + attribute, tensor)
        writer.refer(operation, prefix + "CONV_DESC", convolution)
        if random.random() < 0.9 or alpha != 1 or beta != 0:
            scale = "DOUBLE" if problem.data_type == "f64" else "FLOAT"
            writer.set(operation, prefix + "ALPHA", scale, [alpha])
            writer.set(operation, prefix + "BETA", scale, [beta])
        if not names:
            self._disturb(tensors["x"], sizes["x"])  # the operation is not finalized yet
        writer.finalize(operation)
        for name, tensor in tensors.items():
            self._disturb(tensor, sizes[name])
        self._disturb(convolution)
        operations = [operation]
        for place, name in enumerate(names):
            b = None
            if name != "relu":
                b = self._tensor(UIDS[f"operand{place}"], operand_shapes(problem)[f"operand{place}"], problem)
            operations.append(self._pointwise(name, between[place], between[place + 1], b, wide))
            if b is not None:
                self._disturb(b, sizes["y"])
        for tensor in between:
            self._disturb(tensor, sizes["y"])
        if random.random() < 0.2:
            operations.reverse()
        graph = Graph(problem, pass_, alpha, beta, writer.create("OPERATIONGRAPH"))
        graph.is_exact = self.oddity not in ("strided", "uids", "paddings", "virtual")
        if random.random() < 0.95:
            writer.set(graph.slot, "OPERATIONGRAPH_HANDLE", "HANDLE", [("slot", self.handle)])
        writer.refer(graph.slot, "OPERATIONGRAPH_OPS", *operations)
        writer.finalize(graph.slot)
        for one in operations:
            self._disturb(one)
        for name, tensor in tensors.items():
            self._disturb(tensor, sizes[name])
        if self._is_free():
            self._describe_another(problem, {"x": tensors["x"], "w": tensors["w"], "y": between[-1]})
        return graph

    def _describe_another(self, problem: Problem, tensors: dict[str, str]) -> None:
        """Initialize the tensors of a finalized graph again, for a similar convolution."""
        uids, kept = dict(UIDS), problem.mini_batch
        if self.random.random() < 0.5:
            kept = max(1, problem.mini_batch // 2)
        else:
            uids["x"], uids["w"], uids["y"] = UIDS["y"], UIDS["x"], UIDS["w"]
        sizes = shapes(problem.replace(mini_batch=kept))
        for name, tensor in tensors.items():
            strides = packed_strides(sizes[name], problem.layout)
            self.write_.initialize(tensor)
            self.write_.describe_tensor(tensor, uids[name], sizes[name], strides, problem.data_type)
            self.write_.finalize(tensor)

    def _pointwise(self, name: str, x: str, y: str, b: str | None, wide: str) -> str:
        writer = self.write_
        function = writer.create("POINTWISE")
        mode = "RELU_FWD" if name == "relu" else "ADD"
        writer.set(function, "POINTWISE_MODE", "POINTWISE_MODE", [CONSTANTS[f"POINTWISE_{mode}"]])
        writer.set(function, "POINTWISE_MATH_PREC", "DATA_TYPE", [NUMBERS[wide]])
        if name == "relu":
            writer.set(function, "POINTWISE_NAN_PROPAGATION", "NAN_PROPOGATION", [1])
            writer.set(function, "POINTWISE_RELU_LOWER_CLIP", "DOUBLE", [0.0])
            writer.set(function, "POINTWISE_RELU_UPPER_CLIP", "DOUBLE", [LARGEST[wide]])
            writer.set(function, "POINTWISE_RELU_LOWER_CLIP_SLOPE", "DOUBLE", [0.0])
        writer.finalize(function)
        operation = writer.create("OPERATION_POINTWISE")
        writer.refer(operation, "OPERATION_POINTWISE_PW_DESCRIPTOR", function)
        writer.refer(operation, "OPERATION_POINTWISE_XDESC", x)
        if b is not None:
            writer.refer(operation, "OPERATION_POINTWISE_BDESC", b)
        writer.refer(operation, "OPERATION_POINTWISE_YDESC", y)
        writer.set(operation, "OPERATION_POINTWISE_ALPHA1", "FLOAT", [1.0])
        writer.set(operation, "OPERATION_POINTWISE_ALPHA2", "FLOAT", [0.0 if name == "add0" else 1.0])
        writer.finalize(operation)
        self._disturb(function)
        return operation

    # --- engines and plans ---

    def _plans(self, graph: Graph) -> list[Plan]:
        if self.random.random() < 0.6:
            plans = self._plans_by_heuristics(graph)
        else:
            plans = [self._plan_by_index(graph) for _ in range(self.random.choice((1, 1, 2)))]
        self._disturb(graph.slot)
        return plans

    def _plans_by_heuristics(self, graph: Graph) -> list[Plan]:
        random, writer = self.random, self.write_
        heuristics = writer.create("ENGINEHEUR")
        writer.refer(heuristics, "ENGINEHEUR_OPERATION_GRAPH", graph.slot)
        mode = random.choice(("INSTANT", "INSTANT", "A", "B", "FALLBACK"))
        writer.set(heuristics, "ENGINEHEUR_MODE", "HEUR_MODE", [CONSTANTS[f"HEUR_MODE_{mode}"]])
        writer.finalize(heuristics)
        wanted = random.choice((1, 1, 2, 3, 6))
        configs = [writer.create("ENGINECFG") for _ in range(wanted)]
        if self.configs and self.liberty > random.random() / 3:  # reuse old descriptors
            configs = random.sample(self.configs, min(wanted, len(self.configs)))
        if self._is_free():
            writer.get_into(heuristics, "ENGINEHEUR_RESULTS", list(reversed(configs)))
        writer.get_into(heuristics, "ENGINEHEUR_RESULTS", configs)
        self.configs += configs
        self._disturb(heuristics)
        keys = {}
        if random.random() < 0.7:
            keys = {config: writer.config_workspace(config, self.script.name("size:")) for config in configs}
        if keys and random.random() < 0.5:
            chosen, cap = self.script.name("chosen"), random.choice(CAPS)
            self.script.add(Choose(chosen, tuple(keys.items()), cap))
            plan = self._plan(chosen, graph)
            plan.cap = cap
            return [plan]
        plans = []
        likely = configs if random.random() < 0.2 else configs[:2]
        for config in random.sample(likely, min(len(likely), random.choice((1, 1, 2)))):
            plan = self._plan(config, graph)
            plan.keys += [keys[config]] if config in keys else []
            plans.append(plan)
            self._disturb(config)
        return plans

    def _plan_by_index(self, graph: Graph) -> Plan:
        random, writer = self.random, self.write_
        engine = writer.create("ENGINE")
        writer.refer(engine, "ENGINE_OPERATION_GRAPH", graph.slot)
        indices = random.choices((GEMMS[graph.pass_], RUNNABLE[graph.pass_], range(-1, 9)), (5, 4, 1))[0]
        writer.set(engine, "ENGINE_GLOBAL_INDEX", "INT64", [random.choice(indices)])
        writer.finalize(engine)
        config = writer.create("ENGINECFG")
        if self.configs and self._is_free():  # reuse an old descriptor
            config = random.choice(self.configs)
            writer.initialize(config)
        writer.refer(config, "ENGINECFG_ENGINE", engine)
        if random.random() < 0.3:
            knob = writer.create("KNOB_CHOICE")
            type_ = TILE_SIZE if random.random() < 0.9 else 3
            writer.set(knob, "KNOB_CHOICE_KNOB_TYPE", "KNOB_TYPE", [type_])
            writer.set(knob, "KNOB_CHOICE_KNOB_VALUE", "INT64", [random.choice((-1, 0, 1, 2, 3, 9))])
            writer.finalize(knob)
            writer.refer(config, "ENGINECFG_KNOB_CHOICES", knob)
        writer.finalize(config)
        self.configs.append(config)
        self._disturb(engine)
        keys = []
        if random.random() < 0.5:
            keys.append(writer.config_workspace(config, self.script.name("size:")))
        plan = self._plan(config, graph)
        plan.keys += keys
        self._disturb(config)
        return plan

    def _plan(self, config: str, graph: Graph) -> Plan:
        writer = self.write_
        plan = Plan(writer.create("EXECUTION_PLAN"), graph)
        if self.random.random() < 0.95:
            writer.set(plan.slot, "EXECUTION_PLAN_HANDLE", "HANDLE", [("slot", self.handle)])
        writer.refer(plan.slot, "EXECUTION_PLAN_ENGINE_CONFIG", config)
        if self._is_free():  # the plan keeps the old configuration
            writer.initialize(config)
        writer.finalize(plan.slot)
        return plan

    def _ask(self, plan: Plan) -> None:
        """Ask for the workspace size in some of the possible ways, in any order."""
        writer, random = self.write_, self.random
        if plan.cap is not None and random.random() < 0.8:
            return
        for _ in range(random.choice((1, 1, 2, 3))):
            key = self.script.name("size:")
            if random.random() < 0.6:
                writer.plan_workspace(plan.slot, key)
            else:
                pack = writer.create("VARIANT_PACK")
                self.script.call(
                    "cudnnGetExecutionPlanWorkspaceSize", ("slot", self.handle), ("slot", plan.slot),
                    ("slot", pack), ("out", key, "INT64", 1),
                )  # fmt: skip
            plan.keys.append(key)
            random.shuffle(plan.keys)
        if self._is_free():  # ask by the configuration that the plan returns
            shown = writer.create("ENGINECFG")
            if self.configs and random.random() < 0.5:
                shown = random.choice(self.configs)
            writer.get_into(plan.slot, "EXECUTION_PLAN_ENGINE_CONFIG", [shown])
            self.configs.append(shown)
            plan.keys.append(writer.config_workspace(shown, self.script.name("size:")))

    # --- executions ---

    def _memory(self, graph: Graph) -> Work:
        problem, names = graph.problem, {}
        sizes = {**shapes(problem), **operand_shapes(problem)}
        for name, extents in sizes.items():
            names[name] = self.script.name(name)
            is_output = name == OUTPUT[graph.pass_]
            bytes_ = problem.element_size * math.prod(extents)
            if self.oddity == "strided":
                bytes_ *= 2
            if self.oddity == "uids" and name == "x":  # w is read from its memory too
                bytes_ += problem.element_size * math.prod(sizes["w"])
            if self.oddity == "paddings" and name == "y":
                bytes_ *= 4
            kind = "nan" if is_output and graph.beta == 0 else "random"
            self.script.add(
                Allocate(
                    names[name], ("fixed", bytes_), Fill(kind, problem.data_type, self.random.randrange(99)),
                    alignment=problem.element_size if self.oddity == "alignment" else 16,
                    at_end=self.random.random() < 0.8, is_input=not is_output,
                )
            )  # fmt: skip
        return Work(str(problem), graph.pass_, graph.alpha, graph.beta, names)

    def _workspace(self, plan: Plan) -> str:
        random, name = self.random, self.script.name("workspace")
        if plan.cap is not None:
            size: tuple[object, ...] = ("fixed", plan.cap)
        elif plan.keys and random.random() < 0.9:
            size = (random.choice(("least", "least", "first", "last", "most")), tuple(plan.keys))
        else:
            size = ("fixed", 0)
        self.script.add(
            Allocate(name, size, Fill("scratch"), alignment=random.choice((1, 16, 64)),
                     at_end=random.random() < 0.8)
        )  # fmt: skip
        return name

    def _execution(self, plan: Plan, handle: str) -> list[Step]:
        before, self.script.steps = self.script.steps, []
        random, writer = self.random, self.write_
        work = self._memory(plan.graph)
        workspace = self._workspace(plan)
        pack = writer.create("VARIANT_PACK")
        output = work.buffers[OUTPUT[plan.graph.pass_]]
        pairs = [(UIDS[name], ("buffer", buffer)) for name, buffer in work.buffers.items()]
        random.shuffle(pairs)
        is_exact = plan.graph.is_exact
        if self._is_free():
            pairs.append((999, ("buffer", workspace)))
        if self._is_free():
            pairs.pop()
        if self._is_free():  # set twice: the second values count
            writer.set(pack, "VARIANT_PACK_DATA_POINTERS", "VOID_PTR", [("buffer", workspace)])
        writer.set(pack, "VARIANT_PACK_DATA_POINTERS", "VOID_PTR", [pointer for _, pointer in pairs])
        writer.set(pack, "VARIANT_PACK_UNIQUE_IDS", "INT64", [uid for uid, _ in pairs])
        if random.random() < 0.97:
            writer.set(pack, "VARIANT_PACK_WORKSPACE", "VOID_PTR", [("buffer", workspace)])
        if not self._is_free():
            writer.finalize(pack)
            if self._is_free():  # a finalized pack refuses this
                writer.set(pack, "VARIANT_PACK_WORKSPACE", "VOID_PTR", [("buffer", output)])
        call = Call(
            "cudnnBackendExecute", (("slot", handle), ("slot", plan.slot), ("slot", pack)),
            outputs=(output,), work=work if is_exact else None, type_=plan.graph.problem.data_type,
        )  # fmt: skip
        self.script.add(call)
        for _ in range(random.choice((0, 0, 0, 1, 2))):
            kind = "nan" if work.beta == 0 else "random"
            fill = Fill(kind, plan.graph.problem.data_type, random.randrange(99))
            self.script.add(Refill(output, fill))
            if self._is_free():  # the same descriptor gets other memory
                again = self.script.name("again")
                size = plan.graph.problem.element_size * math.prod(
                    shapes(plan.graph.problem)[OUTPUT[plan.graph.pass_]]
                )
                self.script.add(Allocate(again, ("fixed", size), fill))
                writer.initialize(pack)
                writer.set(pack, "VARIANT_PACK_UNIQUE_IDS", "INT64", [uid for uid, _ in pairs])
                pointers = [("buffer", again) if pointer[1] == output else pointer for _, pointer in pairs]
                writer.set(pack, "VARIANT_PACK_DATA_POINTERS", "VOID_PTR", pointers)
                writer.set(pack, "VARIANT_PACK_WORKSPACE", "VOID_PTR", [("buffer", workspace)])
                writer.finalize(pack)
                names = {name: again if buffer == output else buffer for name, buffer in work.buffers.items()}
                moved = replace(work, buffers=names) if is_exact else None
                self.script.add(
                    Call(call.function, call.arguments, outputs=(again,), work=moved, type_=call.type_)
                )
                break
            self.script.add(call)
        writer.destroy(pack)
        steps, self.script.steps = self.script.steps, before
        return steps

    def _execute(self, plan: Plan) -> None:
        self.script.steps += self._execution(plan, self.handle)
        if self._is_free():  # an empty plan
            other = Plan(self.write_.create("EXECUTION_PLAN"), plan.graph)
            self.script.steps += self._execution(other, self.handle)
        if self._is_free():  # a graph as the plan, and a plan as the pack
            self.script.call(
                "cudnnBackendExecute", ("slot", self.handle), ("slot", plan.graph.slot), ("slot", plan.slot)
            )

    def _threads(self, plan: Plan) -> None:
        scripts = []
        for _ in range(self.random.choice((2, 3))):
            handle = self.script.name("handle")
            self.script.call("cudnnCreate", ("new", handle))
            scripts.append(tuple(self._execution(plan, handle)))
        self.script.add(Threads(tuple(scripts)))


def graph_program(seed: int | str) -> list[Step]:
    return GraphProgram(seed).write()
