"""Plans kernels on the libcudnn.so.9 that is found: a JSON document in, a JSON document out.

Run as a program, because which cuDNN a process uses is settled once. In: `device`, its properties, and
`kernels`, a list of (descriptor, pass). Out: for each kernel its candidates as (algorithm, status, workspace,
notes, the workspace of planning it again from its name, None where that is refused).
"""

from __future__ import annotations

import json
import sys

from mucudnn._native import EngineError, Planner, parse_descriptor
from mucudnn.problems.kernels import Kernel


def again(planner: Planner, kernel: Kernel, algorithm: str) -> int | None:
    try:
        return planner.workspace(kernel, algorithm)
    except EngineError:
        return None


def main() -> None:
    wanted = json.load(sys.stdin)
    planner = Planner("libcudnn.so.9", wanted["device"])
    answers = []
    for descriptor, pass_ in wanted["kernels"]:
        kernel = Kernel(parse_descriptor(descriptor)[0], pass_)
        answers.append(
            [
                (c.algorithm, c.status, c.workspace, c.notes, again(planner, kernel, c.algorithm))
                for c in planner.enumerate(kernel)
            ]
        )
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
