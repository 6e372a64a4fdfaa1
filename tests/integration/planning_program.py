"""Plans kernels on the libcudnn.so.9 that is found: a JSON document in, a JSON document out.

Run as a program, because which cuDNN a process uses is settled once. In: `device`, its properties, and
`kernels`, a list of (descriptor, pass). Out: for each kernel its candidates as (algorithm, status, workspace,
notes, the workspace of planning it again from its name, None where that is refused).
"""

from __future__ import annotations

import json
import sys

from mucudnn._native import EngineError, Planner, Problem, parse_descriptor


def again(planner: Planner, problem: Problem, pass_: str, algorithm: str) -> int | None:
    try:
        return planner.workspace(problem, pass_, algorithm)
    except EngineError:
        return None


def main() -> None:
    wanted = json.load(sys.stdin)
    planner = Planner("libcudnn.so.9", wanted["device"])
    answers = []
    for descriptor, pass_ in wanted["kernels"]:
        problem, _, _ = parse_descriptor(descriptor)
        answers.append(
            [
                (c.algorithm, c.status, c.workspace, c.notes, again(planner, problem, pass_, c.algorithm))
                for c in planner.enumerate(problem, pass_)
            ]
        )
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
