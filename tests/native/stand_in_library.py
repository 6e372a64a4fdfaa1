"""A library to link programs against. It has cuDNN's name, version and functions, which do nothing."""

from pathlib import Path

from host_abi import ABI, FUNCTIONS
from programs import SONAME, compile_c

VERSION_SCRIPT = ABI.parents[1] / "shim" / "entry" / "exports.map"


def build_library(source: Path, library: Path, *options: str | Path) -> Path:
    """Compile a made-up libcudnn.so.9 with this SONAME and cuDNN's symbol version."""
    library.parent.mkdir(parents=True, exist_ok=True)
    script = f"-Wl,--version-script={VERSION_SCRIPT}"
    compile_c("-shared", "-fPIC", f"-Wl,-soname,{SONAME}", script, *options, source, "-o", library)
    return library


def build_stand_in(folder: Path) -> Path:
    folder.mkdir()
    source = folder / "stand_in.c"
    source.write_text("".join(f"int {function}(void) {{ return 9; }}\n" for function in FUNCTIONS))
    return build_library(source, folder / SONAME)
