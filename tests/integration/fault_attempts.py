"""Runs of shim_faults.py: the same cases without a fault, and then once with each fault."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from programs import SHIM, preload, run
from shim_cases import CLIENT

from mucudnn._native import host_library


def attempts(
    cases: list[Any], folder: Path, fault: Path, kind: str, **environment: str
) -> list[dict[str, Any]]:
    """Run the cases without a fault, then once for each fault. Return the outcome of each attempt."""
    (folder / "cases.json").write_text(json.dumps(cases))
    script = Path(__file__).with_name("shim_faults.py")
    result = run(
        sys.executable, script, folder / "cases.json", fault, kind,
        PYTHONPATH=str(CLIENT.parent), HOST_ENGINE=host_library(), OPENBLAS_NUM_THREADS="1",
        **{"LD_PRELOAD": preload(SHIM), **environment},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    first, *others = [json.loads(line) for line in result.stdout.splitlines()]
    assert (first["error"], len(others)) == ("", first["count"])
    return [first, *others]


def check_output(outcome: dict[str, Any], expected: dict[str, Any], what: str) -> None:
    for result, expected_result in zip(outcome["done"], expected["done"], strict=True):
        assert result["statuses"] == expected_result["statuses"], what
        np.testing.assert_allclose(
            result["output"], expected_result["output"], rtol=0, atol=1e-4, err_msg=what
        )
