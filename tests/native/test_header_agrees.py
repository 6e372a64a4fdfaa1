"""Our headers of the cuDNN ABI declare nothing that NVIDIA's cudnn.h does not declare the same way.

A C++ file is generated that includes the real header, then ours inside a namespace, and asserts at compile
time that constants, types, members and signatures agree. The signatures in our list name their types, so that
expanding the list where those names mean the real types compares the real function with what we wrote.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from host_abi import HEADERS

PACKAGES = "nvidia-cudnn-cu13 (with --no-deps), nvidia-cuda-runtime and nvidia-cuda-crt"


@pytest.fixture(scope="module")
def real_headers() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in spec.submodule_search_locations or ()] if spec else []
    folders = [folder for root in roots for folder in sorted(root.glob("*/include"))]
    if any((folder / "cudnn.h").is_file() for folder in folders):
        return folders
    reason = f"needs cudnn.h and CUDA's headers: pip install {PACKAGES}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def comparison(text: str) -> str:
    """C++ that compiles only where `text`, the contents of our headers, agrees with cudnn.h."""
    words = set(re.findall(r"\b(?:CUDNN_\w+|MAJOR_VERSION|MINOR_VERSION|PATCH_LEVEL)\b", text))
    macros = set(re.findall(r"^#define (CUDNN_\w+) ", text, re.MULTILINE))
    functions = sorted(set(re.findall(r"\bX\([^,()]+, (cudnn\w+),", text)))
    enums = re.findall(r"^typedef enum [^{;]*\{.*?\} (\w+);", text, re.MULTILINE | re.DOTALL)
    structs = re.findall(r"^typedef struct \w+ \{(.*?)\} (\w+);", text, re.MULTILINE | re.DOTALL)
    pointers = re.findall(r"^typedef (?:struct \w+|void)\* (\w+);", text, re.MULTILINE)
    lists = re.findall(r"^#define (MUCUDNN_\w+_FUNCTIONS(?:_SINCE_(\d+))?)\(", text, re.MULTILINE)
    assert len(words) > 200
    assert len(functions) > 60
    assert (len(enums), len(structs), len(pointers), len(lists)) == (22, 3, 8, 3)

    def check(condition: str, what: str) -> str:
        return f'static_assert({condition}, "{what} differs");'

    lines = ["#include <cudnn.h>", "#include <cstddef>", "#include <type_traits>"]
    lines += [f"constexpr long long real_{macro} = {macro};\n#undef {macro}" for macro in sorted(macros)]
    # C functions of one name are one function in every namespace: ours take other names here.
    lines += [f"#define {function} ours_{function}" for function in functions]
    lines += ["namespace ours {", *(f'#include "cudnn/{header.name}"' for header in HEADERS), "}"]
    lines += [f"#undef {function}" for function in functions]
    lines += [check(f"{macro} == real_{macro}", macro) for macro in sorted(macros)]
    lines += [check(f"int(ours::{word}) == int(::{word})", word) for word in sorted(words - macros)]
    for name in enums:
        lines.append(check(f"std::is_enum_v<::{name}> && sizeof(ours::{name}) == sizeof(::{name})", name))
    for name in pointers:
        lines.append(check(f"std::is_pointer_v<::{name}> && std::is_pointer_v<ours::{name}>", name))
    for body, name in structs:
        lines.append(check(f"sizeof(ours::{name}) == sizeof(::{name})", name))
        for member in re.findall(r"(\w+)(?:\[\d+\])?;", body):
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
    ]
    lines += [f"#if CUDNN_VERSION >= {since or 0}\n{name}(AGREES)\n#endif" for name, since in lists]
    return "\n".join(lines) + "\n"


def compile_against(
    headers: dict[str, str], real_headers: list[Path], folder: Path
) -> subprocess.CompletedProcess[str]:
    compiler = os.environ.get("CXX") or shutil.which("c++")
    assert compiler, "needs a C++ compiler: set CXX"
    (folder / "cudnn").mkdir()
    for name, text in headers.items():
        (folder / "cudnn" / name).write_text(text)
    source = folder / "comparison.cpp"
    source.write_text(comparison("".join(headers.values())))
    includes = [option for path in real_headers for option in ("-isystem", str(path))]
    command = [*compiler.split(), "-std=c++17", "-fsyntax-only", f"-I{folder}", *includes, str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def ours() -> dict[str, str]:
    return {header.name: header.read_text() for header in HEADERS}


def test_every_declaration_agrees_with_the_real_header(real_headers: list[Path], tmp_path: Path) -> None:
    result = compile_against(ours(), real_headers, tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("CUDNN_DATA_BFLOAT16 = 9", "CUDNN_DATA_BFLOAT16 = 8", "CUDNN_DATA_BFLOAT16 differs"),
        ("CUDNN_STATUS_NOT_SUPPORTED, 3000", "CUDNN_STATUS_NOT_SUPPORTED, 9", "NOT_SUPPORTED differs"),
        ("CUDNN_DIM_MAX 8", "CUDNN_DIM_MAX 5", "CUDNN_DIM_MAX differs"),
        ("float time;\n  size_t memory;", "size_t memory;\n  float time;", "AlgoPerf_t.time differs"),
        ("int reserved[3];", "int reserved[2];", "AlgoPerf_t.reserved differs"),
        ("(cudnnHandle_t handle, int* count)", "(cudnnHandle_t handle, size_t* count)", "MaxCount differs"),
        ("size_t, cudnnGetVersion", "int, cudnnGetVersion", "cudnnGetVersion differs"),
        ("CUDNN_FMA_MATH = 3", "CUDNN_FAST_MATH = 3", "CUDNN_FAST_MATH"),
        ("CUDNN_ATTR_TENSOR_STRIDES = 903", "CUDNN_ATTR_TENSOR_STRIDES = 902", "TENSOR_STRIDES differs"),
        ("int64_t requested,", "int32_t requested,", "cudnnBackendGetAttribute differs"),
    ],
)
def test_a_wrong_declaration_is_caught(
    right: str, wrong: str, complaint: str, real_headers: list[Path], tmp_path: Path
) -> None:
    headers = ours()
    (name,) = [name for name, text in headers.items() if right in text]
    result = compile_against(
        {**headers, name: headers[name].replace(right, wrong, 1)}, real_headers, tmp_path
    )
    assert result.returncode != 0
    assert complaint in result.stderr
