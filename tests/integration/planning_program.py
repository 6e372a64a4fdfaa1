"""A program that plans kernels on the libcudnn.so.9 that the loader finds.

It is a program because a process keeps the first cuDNN that it opens. It reads a JSON document with `device`,
the properties of a GPU, and `kernels`, a list of (descriptor, pass). It writes a list of candidates for each
kernel: (algorithm, status, workspace, notes, the workspace of planning its name again).
The last is None if cuDNN refuses the name.
"""

import json
import sys

from mucudnn._native import EngineError, Planner, parse_descriptor
from mucudnn.problems.kernels import Kernel


def workspace_planned_again(planner: Planner, kernel: Kernel, algorithm: str) -> int | None:
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
                (
                    c.algorithm,
                    c.status,
                    c.workspace,
                    c.notes,
                    workspace_planned_again(planner, kernel, c.algorithm),
                )
                for c in planner.enumerate(kernel)
            ]
        )
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
