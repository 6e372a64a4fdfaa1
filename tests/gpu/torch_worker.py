"""A program that trains in the named settings, one after the other, and records each outcome.

`python tests/gpu/torch_worker.py FOLDER SECONDS DEVICE NAME...` appends a line to FOLDER/outcomes.jsonl when
it begins a setting and another when it is done, and keeps the gradient in FOLDER/NAME.pt. It does not use
mucudnn.
"""

import json
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch_settings import ALL
from torch_training import train

OUTCOMES = "outcomes.jsonl"
NOT_FIT = 3  # the exit code if the device no longer works


def main(folder: Path, seconds: float, device: str, names: list[str]) -> int:
    """Train in all settings and return the exit code. Begin none after the seconds are over."""
    begin = time.monotonic()
    with (folder / OUTCOMES).open("a", buffering=1) as file:

        def say(**line: Any) -> None:
            file.write(json.dumps(line) + "\n")

        say(machine=_describe(device))
        for name in names:
            if time.monotonic() - begin > seconds:
                break
            say(begun=name)
            say(done=name, **_attempt(name, device, folder))
            if not _is_fit(device):
                return NOT_FIT
    return 0


def _attempt(name: str, device: str, folder: Path) -> dict[str, Any]:
    begin = time.monotonic()
    try:
        trained = train(ALL[name], device)
        torch.save(trained.gradient, folder / f"{name}.pt")
        outcome = {key: value for key, value in asdict(trained).items() if key != "gradient"}
    except Exception:  # any error: the later settings still run
        outcome = {"error": "".join(traceback.format_exc().splitlines(keepends=True)[-12:])}
    return {**outcome, "seconds": round(time.monotonic() - begin, 2)}


def _is_fit(device: str) -> bool:
    """Return whether the device still works. After some errors of CUDA a process can do no more work."""
    try:
        if device == "cuda":
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _describe(device: str) -> dict[str, Any]:
    on_gpu = device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]))
