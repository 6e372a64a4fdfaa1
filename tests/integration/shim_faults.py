"""A program that makes one call after another fail under the shim, each in a forked child.

    python shim_faults.py CASES.json FAILING once|sticky

FAILING is a library with fail_call(), calls() and failed_call(). Each child runs all cases and prints its
outcome as a line of JSON. If FAILING is a CUDA runtime, the outcome has the error that cudaGetLastError()
reports at the end.
"""

import ctypes
import json
import os
import sys
from typing import Any

import numpy.random  # noqa: F401  (numpy imports it lazily: the parent does it once for all children)
import shim_client


def attempt(library: ctypes.CDLL, cases: list[dict[str, Any]]) -> dict[str, Any]:
    done: list[Any] = []
    try:
        for case in cases:
            facts, output = shim_client.run(shim_client.Client(library), case)
            done.append({"statuses": facts["statuses"], "output": output.view("f4").tolist()})
    except AssertionError as error:
        return {"error": str(error), "done": done}
    return {"error": "", "done": done}


def main(cases_path: str, failing: str, kind: str) -> None:
    with open(cases_path, encoding="utf-8") as file:
        cases = json.load(file)
    library = ctypes.CDLL("libcudnn.so.9")
    faults = ctypes.CDLL(failing)
    ctypes.CDLL(os.environ["HOST_ENGINE"])  # the parent opens it once for all children
    faults.failed_call.restype = ctypes.c_char_p
    number, most = 0, 0
    while number <= most:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            faults.fail_call(number, kind == "sticky")
            outcome = attempt(library, cases)
            facts = {"number": number, "failed": faults.failed_call().decode(), "count": faults.calls()}
            faults.fail_call(0, False)
            if hasattr(faults, "cudaGetLastError"):
                facts["last_error"] = faults.cudaGetLastError()
            line = json.dumps({**outcome, **facts})
            with os.fdopen(writer, "w") as pipe:
                pipe.write(line)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            line = pipe.read()
        assert os.waitpid(child, 0)[1] == 0, f"number {number} ended the program"
        print(line)
        if number == 0:
            most = json.loads(line)["count"]
        number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
