"""The host engine's numbers for the engines of its graph API, and a small problem for them."""

from mucudnn._native import Problem

PLAIN = Problem(mini_batch=3, in_channels=4, out_channels=6, input=(9, 8), kernel=(3, 3), padding=(1, 1))
# The host engine also has each legacy algorithm as an engine of the graph API, by this number.
LEGACY_NUMBERS = {
    "forward": {"IMPLICIT_GEMM": 0, "GEMM": 2, "FFT_TILING": 5, "WINOGRAD_NONFUSED": 7},
    "backward_data": {"ALGO_1": 1, "ALGO_0": 0, "FFT_TILING": 3, "WINOGRAD_NONFUSED": 5},
    "backward_filter": {"ALGO_1": 1, "ALGO_0": 0, "FFT_TILING": 6, "WINOGRAD_NONFUSED": 5},
}
EXPLICIT_GEMM = {"forward": 2, "backward_data": 0, "backward_filter": 0}  # the engine that has a knob
# Engines and legacy algorithms that are neither FFT nor Winograd. The first of each needs no workspace.
UNTRANSFORMED = {
    "forward": ("eng0", "eng2", "IMPLICIT_GEMM", "GEMM"),
    "backward_data": ("eng1", "eng0", "ALGO_1", "ALGO_0"),
    "backward_filter": ("eng1", "eng0", "ALGO_1", "ALGO_0"),
}
