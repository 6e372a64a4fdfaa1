"""Problems for a GPU, in each combination of data type and math."""

from mucudnn._native import Problem, parse_descriptor

SQUARE, VOLUME = "mb8_ic16ih14_oc32_kh3_ph1", "mb4_ic16id6ih6_oc16_kd3kh3_pd1ph1"
STRIDED, POINTWISE = "mb8_ic32ih15_oc16_kh3_sh2_ph1", "mb8_ic32ih14_oc16_kh1"
COLUMNS = {  # data type, math
    "fma": ("f32", "fma"), "tf32": ("f32", "tf32"),
    "f16": ("f16", "default"), "bf16": ("bf16", "default"),
}  # fmt: skip


def problem(text: str, column: str, layout: str = "nchw") -> Problem:
    data_type, math = COLUMNS[column]
    return parse_descriptor(text, data_type=data_type, layout=layout, math=math)[0]
