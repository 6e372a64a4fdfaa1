"""Each of our declarations of NVIDIA's interfaces agrees with NVIDIA's headers.

The test generates a C++ file that includes the real header, and ours inside a namespace. Static assertions
compare constants, types, members and signatures. The signatures in our list name their types, so the file
expands the list outside the namespace, where these names mean the real types.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import nvidia_headers
import pytest
from programs import run_compiler

NATIVE = Path(__file__).parents[2] / "native"


@dataclass(frozen=True)
class Header:
    """One of our headers, and the real header that it must agree with."""

    path: Path
    real: str
    constants: str  # a regular expression of the constants that it declares
    # The least number of constants and of functions, then the number of enums, structs and pointer types.
    counts: tuple[int, int, int, int, int]
    includes: tuple[Path, ...] = ()  # our headers that it includes


CUDNN = Header(
    NATIVE / "abi" / "cudnn.h",
    "cudnn.h",
    r"CUDNN_\w+|MAJOR_VERSION|MINOR_VERSION|PATCH_LEVEL",
    (70, 50, 13, 3, 6),
)
BACKEND = Header(
    NATIVE / "abi" / "cudnn_backend.h", "cudnn.h", r"CUDNN_\w+", (140, 10, 9, 0, 2), (CUDNN.path,)
)
CUDART = Header(
    NATIVE / "abi" / "cudart.h",
    "cuda_runtime_api.h",
    r"cuda(?:Success|Error[A-Z]\w+|Memcpy[A-Z]\w+To\w+|MemcpyDefault|DevAttr\w+|StreamCapture(?:Status|Mode)[A-Z]\w+"
    r"|Stream(?:Default|NonBlocking)|Event(?:Default|BlockingSync|DisableTiming|Interprocess))",
    (25, 33, 5, 1, 2),
)


@pytest.fixture(scope="module")
def real_headers() -> list[Path]:
    return nvidia_headers.folders()


def comparison(header: Header, text: str) -> str:
    """Return C++ that compiles only if `text`, the contents of our header, agrees with the real one."""
    words = set(re.findall(rf"\b(?:{header.constants})\b", text))
    macros = set(re.findall(rf"^#define ({header.constants}) ", text, re.MULTILINE))
    functions = sorted(set(re.findall(r"\bX\([^,()]+, (cud\w+),", text)))
    lists = re.findall(r"^#define (MUCUDNN_\w+_FUNCTIONS(?:_SINCE_(\d+))?)\(", text, re.MULTILINE)
    enums = re.findall(r"^typedef enum [^{;]*\{.*?\} (\w+);", text, re.MULTILINE | re.DOTALL)
    structs = re.findall(r"^typedef struct \w+ \{(.*?)\} (\w+);", text, re.MULTILINE | re.DOTALL)
    pointers = re.findall(r"^typedef (?:struct \w+|void)\* (\w+);", text, re.MULTILINE)
    constants_at_least, functions_at_least, *types = header.counts
    assert len(words) >= constants_at_least
    assert len(functions) >= functions_at_least
    assert [len(enums), len(structs), len(pointers)] == types

    def check(condition: str, what: str) -> str:
        return f'static_assert({condition}, "{what} differs");'

    lines = [f"#include <{header.real}>", "#include <cstddef>", "#include <type_traits>"]
    lines += [f"constexpr long long real_{macro} = {macro};\n#undef {macro}" for macro in sorted(macros)]
    # A C function is the same in every namespace, so our functions get other names here.
    included = "".join(path.read_text() for path in header.includes)
    renamed = {*functions, *re.findall(r"\bX\([^,()]+, (cud\w+),", included)}
    lines += [f"#define {function} ours_{function}" for function in renamed]
    lines += ["namespace ours {", '#include "ours.h"', "}"]
    lines += [f"#undef {function}" for function in renamed]
    lines += [check(f"{macro} == real_{macro}", macro) for macro in sorted(macros)]
    lines += [check(f"int(ours::{word}) == int(::{word})", word) for word in sorted(words - macros)]
    for name in enums:
        lines.append(check(f"std::is_enum_v<::{name}> && sizeof(ours::{name}) == sizeof(::{name})", name))
    for name in pointers:
        lines.append(check(f"std::is_pointer_v<::{name}> && std::is_pointer_v<ours::{name}>", name))
    for body, name in structs:
        lines.append(check(f"sizeof(ours::{name}) == sizeof(::{name})", name))
        for member in re.findall(r"(\w+)(?:\[\d+\])?;", body):
            if member == "undeclared":  # the members that we do not declare
                continue
            lines.append(
                check(
                    f"offsetof(ours::{name}, {member}) == offsetof(::{name}, {member}) && "
                    f"sizeof(ours::{name}::{member}) == sizeof(::{name}::{member})",
                    f"{name}.{member}",
                )
            )
    lines += [
        "#define AGREES(result, function, parameters) \\",
        '  static_assert(std::is_same_v<result parameters, decltype(::function)>, #function " differs");',
        *(f"#if CUDNN_VERSION >= {since}\n{name}(AGREES)\n#endif" for name, since in lists if since),
        *(f"{name}(AGREES)" for name, since in lists if not since),
    ]
    return "\n".join(lines) + "\n"


def compile_against(
    header: Header, text: str, real_headers: list[Path], folder: Path
) -> subprocess.CompletedProcess[str]:
    (folder / "ours.h").write_text(text)
    source = folder / "comparison.cpp"
    source.write_text(comparison(header, text))
    includes = [option for path in real_headers for option in ("-isystem", str(path))]
    return run_compiler("cpp", "-fsyntax-only", f"-I{folder}", f"-I{NATIVE}", *includes, source)


@pytest.mark.parametrize("header", [CUDNN, BACKEND, CUDART], ids=lambda header: header.path.name)
def test_every_declaration_agrees_with_the_real_header(
    header: Header, real_headers: list[Path], tmp_path: Path
) -> None:
    result = compile_against(header, header.path.read_text(), real_headers, tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("header", "right", "wrong", "complaint"),
    [
        (CUDNN, "CUDNN_DATA_BFLOAT16 = 9", "CUDNN_DATA_BFLOAT16 = 8", "CUDNN_DATA_BFLOAT16 differs"),
        (CUDNN, "CUDNN_STATUS_NOT_SUPPORTED, 3000", "CUDNN_STATUS_NOT_SUPPORTED, 9", "NOT_SUPPORTED differs"),
        (CUDNN, "CUDNN_DIM_MAX 8", "CUDNN_DIM_MAX 5", "CUDNN_DIM_MAX differs"),
        (CUDNN, "float time;\n  size_t memory;", "size_t memory;\n  float time;", "AlgoPerf_t.time differs"),
        (CUDNN, "int reserved[3];", "int reserved[2];", "AlgoPerf_t.reserved differs"),
        (
            CUDNN,
            "(cudnnHandle_t handle, int* count)",
            "(cudnnHandle_t handle, size_t* count)",
            "MaxCount differs",
        ),
        (CUDNN, "size_t, cudnnGetVersion", "int, cudnnGetVersion", "cudnnGetVersion differs"),
        (CUDNN, "CUDNN_FMA_MATH = 3", "CUDNN_FAST_MATH = 3", "CUDNN_FAST_MATH"),
        (
            BACKEND,
            "CUDNN_ATTR_TENSOR_STRIDES = 903",
            "CUDNN_ATTR_TENSOR_STRIDES = 902",
            "TENSOR_STRIDES differs",
        ),
        (BACKEND, "int64_t requested,", "int32_t requested,", "cudnnBackendGetAttribute differs"),
        (
            CUDART,
            "cudaErrorMemoryAllocation, 2,",
            "cudaErrorMemoryAllocation, 3,",
            "MemoryAllocation differs",
        ),
        (CUDART, "cudaMemcpyDeviceToHost = 2", "cudaMemcpyDeviceToHost = 1", "DeviceToHost differs"),
        (CUDART, "cudaStreamNonBlocking 0x01", "cudaStreamNonBlocking 0x02", "NonBlocking differs"),
        (CUDART, "int major;\n  int minor;", "int minor;\n  int major;", "cudaDeviceProp.major differs"),
        (CUDART, "int undeclared[153]", "int undeclared[152]", "cudaDeviceProp differs"),
        (
            CUDART,
            "cudaGetDevice, (int* device)",
            "cudaGetDevice, (unsigned* device)",
            "cudaGetDevice differs",
        ),
    ],
)
def test_a_wrong_declaration_is_caught(
    header: Header, right: str, wrong: str, complaint: str, real_headers: list[Path], tmp_path: Path
) -> None:
    text = header.path.read_text()
    assert right in text
    result = compile_against(header, text.replace(right, wrong, 1), real_headers, tmp_path)
    assert result.returncode != 0
    assert complaint in result.stderr
