"""Random programs of the graph API: graphs, engines, execution plans and variant packs.

Each program builds graphs like frameworks, and sometimes takes a liberty that the API allows: it destroys a
descriptor, initializes it again or fills it by GetAttribute while others refer to it. One of the answers
gives the size of the workspace.
"""

import math
from dataclasses import dataclass, field, replace

from graph_abi import CONSTANTS
from graph_operations import UIDS
from player import ITEM_SIZES
from random_operations import Graph, OperationsWriter
from random_problems import GEMMS, RUNNABLE
from reference import OUTPUT, operand_shapes
from scripts import Allocate, Call, Choose, Fill, Refill, Step, Threads, Work
from shim_client import shapes, type_of

TILE_SIZE = 2  # the type of the knob
CAPS = (0, 1000, 5000, 20_000, 100_000, 1 << 20)


@dataclass
class Plan:
    """An execution plan, and the keys of the answers that name its workspace."""

    slot: str
    graph: Graph
    keys: list[str] = field(default_factory=list)
    cap: int | None = None  # the size of its workspace, if no answer gives it


class GraphProgram(OperationsWriter):
    """The writer of one random program."""

    def __init__(self, seed: int | str) -> None:
        super().__init__(f"graph {seed}")
        self.configs: list[str] = []  # the slots of all configurations so far

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
            size = problem.y_element_size if name == "y" else problem.element_size
            bytes_ = size * math.prod(extents)
            if self.oddity == "strided":
                bytes_ *= 2
            if self.oddity == "uids" and name == "x":  # w is read from its memory too
                bytes_ += problem.element_size * math.prod(sizes["w"])
            if self.oddity == "paddings" and name == "y":
                bytes_ *= 4
            kind = "nan" if is_output and graph.beta == 0 else "random"
            self.script.add(
                Allocate(
                    names[name], ("fixed", bytes_),
                    Fill(kind, type_of(problem, name), self.random.randrange(99)),
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
        is_exact, type_ = plan.graph.is_exact, type_of(plan.graph.problem, OUTPUT[plan.graph.pass_])
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
            outputs=(output,), work=work if is_exact else None, type_=type_,
        )  # fmt: skip
        self.script.add(call)
        for _ in range(random.choice((0, 0, 0, 1, 2))):
            kind = "nan" if work.beta == 0 else "random"
            fill = Fill(kind, type_, random.randrange(99))
            self.script.add(Refill(output, fill))
            if self._is_free():  # the same descriptor gets other memory
                again = self.script.name("again")
                size = ITEM_SIZES[type_] * math.prod(shapes(plan.graph.problem)[OUTPUT[plan.graph.pass_]])
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
