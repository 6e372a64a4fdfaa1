"""A writer that adds calls of the graph API to a script."""

from collections.abc import Sequence

from graph_abi import CONSTANTS
from scripts import Argument, Script

NUMBERS = {"f32": 0, "f64": 1, "f16": 2, "bf16": 9}


class GraphWriter:
    """A writer of cudnnBackend… calls. It names descriptors by their slots."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def create(self, kind: str, slot: str | None = None) -> str:
        slot = slot or self.script.name(kind.lower())
        number = CONSTANTS[f"BACKEND_{kind}_DESCRIPTOR"]
        self.script.call("cudnnBackendCreateDescriptor", ("int", number), ("new", slot))
        return slot

    def set(self, slot: str, attribute: str, type_: str, values: Sequence[object]) -> None:
        self.script.call(
            "cudnnBackendSetAttribute", ("slot", slot), ("int", CONSTANTS[f"ATTR_{attribute}"]),
            ("int", CONSTANTS[f"TYPE_{type_}"]), ("long", len(values)), ("array", type_, list(values)),
        )  # fmt: skip

    def refer(self, slot: str, attribute: str, *others: str) -> None:
        self.set(slot, attribute, "BACKEND_DESCRIPTOR", [("slot", other) for other in others])

    def finalize(self, slot: str) -> None:
        self.script.call("cudnnBackendFinalize", ("slot", slot))

    def initialize(self, slot: str) -> None:
        self.script.call("cudnnBackendInitialize", ("slot", slot))

    def destroy(self, slot: str) -> None:
        self.script.call("cudnnBackendDestroyDescriptor", ("slot", slot))

    def get(self, slot: str, attribute: str, type_: str, key: str) -> str:
        """Ask for one value. Return the key of the answer."""
        self._get(slot, attribute, type_, 1, key, ("out", key, type_, 1))
        return key

    def get_into(self, slot: str, attribute: str, others: Sequence[str]) -> None:
        """Ask for descriptors, which the library writes into those of the slots `others`."""
        key = self.script.name("shown")
        self._get(slot, attribute, "BACKEND_DESCRIPTOR", len(others), key, ("into", list(others)))

    def _get(self, slot: str, attribute: str, type_: str, requested: int, key: str, array: Argument) -> None:
        self.script.call(
            "cudnnBackendGetAttribute", ("slot", slot), ("int", CONSTANTS[f"ATTR_{attribute}"]),
            ("int", CONSTANTS[f"TYPE_{type_}"]), ("long", requested),
            ("out", f"{key.removeprefix('size:')} count", "INT64", 1), array,
        )  # fmt: skip

    def plan_workspace(self, plan: str, key: str) -> str:
        return self.get(plan, "EXECUTION_PLAN_WORKSPACE_SIZE", "INT64", key)

    def config_workspace(self, config: str, key: str) -> str:
        return self.get(config, "ENGINECFG_WORKSPACE_SIZE", "INT64", key)

    def describe_tensor(
        self,
        slot: str,
        uid: int,
        sizes: Sequence[int],
        strides: Sequence[int],
        type_: str,
        *,
        virtual: bool = False,
        alignment: int = 16,
    ) -> None:
        self.set(slot, "TENSOR_DATA_TYPE", "DATA_TYPE", [NUMBERS[type_]])
        self.set(slot, "TENSOR_DIMENSIONS", "INT64", sizes)
        self.set(slot, "TENSOR_STRIDES", "INT64", strides)
        self.set(slot, "TENSOR_UNIQUE_ID", "INT64", [uid])
        self.set(slot, "TENSOR_BYTE_ALIGNMENT", "INT64", [alignment])
        if virtual:
            self.set(slot, "TENSOR_IS_VIRTUAL", "BOOLEAN", [True])
