"""Small programs for the tests of `mucudnn doctor`."""

from pathlib import Path

from programs import compile_c

CALL = (
    "#include <stddef.h>\nsize_t cudnnGetVersion(void);\nint main(void) { return (int)cudnnGetVersion(); }\n"
)


def program(folder: Path, text: str, *options: str | Path) -> Path:
    """Compile a program in C, and return its path."""
    source, path = folder / "program.c", folder / "program"
    source.write_text(text)
    compile_c(source, "-o", path, *options, "-ldl")
    return path
