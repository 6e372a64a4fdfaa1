"""The problems that the client programs compute, and the check of their outputs."""

import numpy as np
from clients import Case, decoded
from reference import OUTPUT

from mucudnn._native import Problem, parse_descriptor

PROBLEMS = {
    "odd mini-batch": "mb7_ic4ih9iw8_oc6_kh3_ph1",
    "groups": "g2mb5_ic4ih9iw8_oc6_kh3_ph1",
    "depthwise": "g4mb3_ic4ih9_oc8_kh3_ph1",
    "stride": "mb5_ic4ih9iw8_oc6oh5ow4_kh3_sh2_ph1",
    "dilation": "mb3_ic4ih9iw8_oc6_kh3_ph2_dh1",
    "1x1": "mb9_ic5ih4_oc3_kh1",
    "3-D": "mb3_ic4id5ih6iw7_oc6_kd3_pd1",
    "channels last": "nhwc:mb7_ic4ih9iw8_oc6_kh3_ph1",
    "3-D, channels last": "nhwc:mb3_ic4id5ih6iw7_oc6_kd3_pd1",
    "fp64": "f64:mb5_ic4ih9iw8_oc6_kh3_ph1",
    "fp16": "f16:mb5_ic4ih9iw8_oc6_kh3_ph1",
    "bf16, channels last": "bf16:nhwc:mb5_ic4ih9iw8_oc6_kh3_ph1",
}
"""Every habit runs all of these."""


def check_output(case: Case, output: bytes, *, times: float = 1.0) -> None:
    """Check that the output is `times` the exact one."""
    name = OUTPUT[case.pass_]
    result = decoded(output, case.shapes()[name], case.problem)
    assert np.linalg.norm(result - times * case.exact()) <= times * case.tolerance()


def problem(descriptor: str) -> Problem:
    return parse_descriptor(descriptor)[0]
