"""A client of the graph API, from graphs to their execution. It fails if a call fails."""

import ctypes
from collections.abc import Mapping

import numpy as np
from graph_abi import CONSTANTS
from graph_operations import Bytes, Descriptor, Operations


class Client(Operations):
    def read(self, descriptor: Descriptor, name: str, type_: str) -> object:
        status, count, values = self.library.get(descriptor, name, type_, 1)
        self.check(status)
        assert count == 1
        return values[0]

    def show(
        self, descriptor: Descriptor, name: str, kind: str, into: Descriptor | None = None
    ) -> Descriptor:
        """Return the descriptor that an attribute refers to. cuDNN writes it into a new one, or `into`."""
        status, shown = (0, into) if into else self.library.create(kind)
        self.check(status)
        self.check(
            self.library.dll.cudnnBackendGetAttribute(
                *(descriptor, CONSTANTS[f"ATTR_{name}"], CONSTANTS["TYPE_BACKEND_DESCRIPTOR"]),
                *(ctypes.c_int64(1), None, ctypes.byref(shown)),
            )
        )
        return shown

    def heuristics(self, graph: Descriptor, mode: str = "INSTANT") -> list[Descriptor]:
        """Return engine configurations, the best first."""
        heuristics = self.make(
            "ENGINEHEUR",
            [
                ("ENGINEHEUR_OPERATION_GRAPH", "BACKEND_DESCRIPTOR", [graph]),
                ("ENGINEHEUR_MODE", "HEUR_MODE", [CONSTANTS[f"HEUR_MODE_{mode}"]]),
            ],
        )
        status, count, _ = self.library.get(heuristics, "ENGINEHEUR_RESULTS", "BACKEND_DESCRIPTOR", 0)
        self.check(status)
        configs = [self.library.create("ENGINECFG")[1] for _ in range(count)]
        array = (ctypes.c_void_p * max(count, 1))(*configs)
        got = ctypes.c_int64()
        self.check(
            self.library.dll.cudnnBackendGetAttribute(
                *(heuristics, CONSTANTS["ATTR_ENGINEHEUR_RESULTS"], CONSTANTS["TYPE_BACKEND_DESCRIPTOR"]),
                *(ctypes.c_int64(count), ctypes.byref(got), array),
            )
        )
        assert got.value == count
        return configs

    def named(self, graph: Descriptor, index: int) -> Descriptor:
        """Return the first configuration of an engine that the heuristics name."""
        configs = self.heuristics(graph) + self.heuristics(graph, "FALLBACK")
        return next(config for config in configs if self.engine_index(config) == index)

    def engine_index(self, config: Descriptor) -> int:
        engine = self.show(config, "ENGINECFG_ENGINE", "ENGINE")
        index = self.read(engine, "ENGINE_GLOBAL_INDEX", "INT64")
        assert isinstance(index, int)
        return index

    def config(self, graph: Descriptor, index: int, knobs: Mapping[int, int] | None = None) -> Descriptor:
        """Make a configuration of an engine by its number. `knobs` are values by knob type."""
        engine = self.make(
            "ENGINE",
            [
                ("ENGINE_OPERATION_GRAPH", "BACKEND_DESCRIPTOR", [graph]),
                ("ENGINE_GLOBAL_INDEX", "INT64", [index]),
            ],
        )
        return self._configured(engine, knobs)

    def config_by_heuristics(
        self, graph: Descriptor, index: int, knobs: Mapping[int, int] | None = None
    ) -> Descriptor:
        """Make a configuration of an engine that is taken out of a result of the heuristics.

        The drop-in may raise the workspace of its plan above the engine's own.
        """
        engine = self.show(self.named(graph, index), "ENGINECFG_ENGINE", "ENGINE")
        return self._configured(engine, knobs)

    def _configured(self, engine: Descriptor, knobs: Mapping[int, int] | None) -> Descriptor:
        choices = [
            self.make(
                "KNOB_CHOICE",
                [
                    ("KNOB_CHOICE_KNOB_TYPE", "KNOB_TYPE", [type_]),
                    ("KNOB_CHOICE_KNOB_VALUE", "INT64", [value]),
                ],
            )
            for type_, value in (knobs or {}).items()
        ]
        attributes = [("ENGINECFG_ENGINE", "BACKEND_DESCRIPTOR", [engine])]
        if choices:
            attributes.append(("ENGINECFG_KNOB_CHOICES", "BACKEND_DESCRIPTOR", choices))
        return self.make("ENGINECFG", attributes)

    def knobs(self, config: Descriptor) -> dict[int, int]:
        """Return the knobs that a configuration has chosen, as values by knob type."""
        brought = [self.library.create("KNOB_CHOICE")[1] for _ in range(8)]
        array, count = (ctypes.c_void_p * len(brought))(*brought), ctypes.c_int64()
        self.check(
            self.library.dll.cudnnBackendGetAttribute(
                *(config, CONSTANTS["ATTR_ENGINECFG_KNOB_CHOICES"], CONSTANTS["TYPE_BACKEND_DESCRIPTOR"]),
                *(ctypes.c_int64(len(brought)), ctypes.byref(count), array),
            )
        )
        chosen = {}
        for choice in brought[: count.value]:
            type_ = self.read(choice, "KNOB_CHOICE_KNOB_TYPE", "KNOB_TYPE")
            value = self.read(choice, "KNOB_CHOICE_KNOB_VALUE", "INT64")
            assert isinstance(type_, int)
            assert isinstance(value, int)
            chosen[type_] = value
        return chosen

    def name(self, config: Descriptor) -> str:
        """Return mucudnn's name of an engine with its knobs, such as eng2_k2=3."""
        knobs = (f"_k{type_}={value}" for type_, value in sorted(self.knobs(config).items()))
        return f"eng{self.engine_index(config)}{''.join(knobs)}"

    def plan(self, config: Descriptor) -> Descriptor:
        return self.make(
            "EXECUTION_PLAN",
            [
                ("EXECUTION_PLAN_HANDLE", "HANDLE", [self.handle]),
                ("EXECUTION_PLAN_ENGINE_CONFIG", "BACKEND_DESCRIPTOR", [config]),
            ],
        )

    def json(self, plan: Descriptor) -> bytes:
        name = "EXECUTION_PLAN_JSON_REPRESENTATION"
        status, size, _ = self.library.get(plan, name, "CHAR", 0)
        self.check(status)
        status, count, text = self.library.get(plan, name, "CHAR", size)
        self.check(status)
        assert count == size
        return b"".join(text)

    def plan_from_json(self, text: bytes) -> Descriptor:
        characters = [text[i : i + 1] for i in range(len(text))]
        return self.make(
            "EXECUTION_PLAN",
            [
                ("EXECUTION_PLAN_HANDLE", "HANDLE", [self.handle]),
                ("EXECUTION_PLAN_JSON_REPRESENTATION", "CHAR", characters),
            ],
        )

    def workspace(self, plan: Descriptor) -> Bytes:
        size = self.read(plan, "EXECUTION_PLAN_WORKSPACE_SIZE", "INT64")
        assert isinstance(size, int)
        return np.zeros(size, np.uint8)

    def pack(self, memory: dict[int, Bytes], workspace: Bytes | None) -> Descriptor:
        pointers = [data.ctypes.data for data in memory.values()]
        scratch = None if workspace is None or workspace.size == 0 else workspace.ctypes.data
        return self.make(
            "VARIANT_PACK",
            [
                ("VARIANT_PACK_DATA_POINTERS", "VOID_PTR", pointers),
                ("VARIANT_PACK_UNIQUE_IDS", "INT64", list(memory)),
                ("VARIANT_PACK_WORKSPACE", "VOID_PTR", [scratch]),
            ],
        )

    def execute(self, plan: Descriptor, memory: dict[int, Bytes]) -> None:
        workspace = self.workspace(plan)
        self.check(self.library.dll.cudnnBackendExecute(self.handle, plan, self.pack(memory, workspace)))
