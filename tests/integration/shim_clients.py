"""Programs that reach libcudnn.so.9 in each of the ways that real ones do, for the tests of the drop-in."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from programs import SHIM, compile_c
from stand_in_library import build_library

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"


@dataclass(frozen=True)
class Habit:
    """One way to reach libcudnn.so.9: linked, opened by name, or as a plugin that is linked."""

    name: str
    link_options: tuple[str, ...] | None = None
    scope: str = ""
    plugin: bool = False

    def build(self, source: Path, folder: Path, *options: str) -> list[str | Path]:
        """Compile `source` into `folder`. Return the command that runs it."""
        program = folder / f"{source.stem}_{self.name}"
        arguments: list[str | Path] = [*options, source, "-o", program]
        if self.link_options is not None:
            arguments += ["-DLINKED", "-fPIC", SHIM, *self.link_options]
        if not self.plugin:
            compile_c(*arguments, "-ldl")
            return [program, self.scope] if self.scope else [program]
        compile_c("-shared", *arguments)
        host = folder / "shim_plugin"
        compile_c(HERE / "shim_plugin.c", "-o", host, "-ldl")
        return [host, program]


HABITS = (
    Habit("linked_lazily", link_options=("-Wl,-z,lazy",)),
    Habit("linked_bind_now", link_options=("-Wl,-z,now",)),
    Habit("plugin_deepbind", link_options=(), plugin=True),
    Habit("opened_local", scope="local"),
    Habit("opened_global", scope="global"),
    Habit("opened_deepbind", scope="deepbind"),
)


def build_answers(habit: Habit, folder: Path) -> list[str | Path]:
    """Compile the program that prints the answers of descriptor calls."""
    return habit.build(HERE / "shim_answers.c", folder, f"-I{NATIVE / 'abi'}")


def build_symbols(habit: Habit, folder: Path, names: Sequence[str]) -> list[str | Path]:
    """Compile the program that prints the file that provides each of `names`."""
    (folder / "symbols.h").write_text("".join(f"SYMBOL({name})\n" for name in names))
    return habit.build(HERE / "shim_symbols.c", folder, f"-I{folder}")


def build_versioned(folder: Path, version: int) -> Path:
    """Compile a made-up libcudnn.so.9 into `folder`, with cudnnGetVersion alone."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "versioned.c"
    source.write_text(
        "#include <stddef.h>\nsize_t cudnnGetVersion(void);\n"
        f"size_t cudnnGetVersion(void) {{ return {version}; }}\n"
    )
    return build_library(source, folder / "libcudnn.so.9")
