"""The lines of each program's table: a question, its aim, and the function that shows the answer."""

from __future__ import annotations

from functools import partial

from bench.lib.answers import Answer, above, figure, recognised

_SPEEDUP = "speedup at 64 MiB"
Row = tuple[str, str, Answer]
by_case, mean = (partial(figure, form=form) for form in ("cases", "mean"))
QUESTIONS: dict[str, tuple[Row, ...]] = {
    "division": (
        ("speedup by division within 64 MiB, N=64, forward: geometric mean, worst to best",
         "above the paper's 1.63", mean("division", _SPEEDUP, " forward")),
        ("the same, backward data", "", mean("division", _SPEEDUP, " backward_data")),
        ("the same, backward filter", "", mean("division", _SPEEDUP, " backward_filter")),
        ("time of WR, with equal shares of a total, relative to that of WD", "at least 1",
         by_case("totals", "WR")),
    ),
    "tiles": (
        ("speedup of large layers over their best undivided algorithm, both within 1 MiB, N=1", "above 1",
         mean("tiles", case="^mb1_.*, 1 MiB")),
        ("the same within 8 MiB", "at least 1.5", mean("tiles", case="^mb1_.*, 8 MiB")),
        ("the same within 64 MiB", "above 1", mean("tiles", case="^mb1_.*, 64 MiB")),
        ("the same without a limit", "at least 1.05", mean("tiles", case="^mb1_.*, no limit")),
        ("the same, N=4, within 8 MiB", "above 1", mean("tiles", case="^mb4_.*, 8 MiB")),
        ("least and most of all", "at least 0.98", figure("tiles")),
    ),
    "shim": (
        ("cost of a call through a trampoline", "at most 5 ns",
         figure("shim", case="trampoline", unit="ns")),
        ("cost of a program's start", "at most 0.2 ms", figure("shim", case="never calls", unit="ms")),
    ),
    "hooks": (
        ("cost of a hooked call, mode off", "at most 50 ns", figure("hooks", case="mode off", unit="ns")),
        ("cost of a hooked call, mode online, left undivided", "",
         figure("hooks", case="online", unit="ns")),
        ("cost of a slice, compared with the program's own loop", "at most 1000 ns",
         figure("hooks", "slice", unit="ns")),
        ("the same, a tile of a large sample", "at most 1000 ns", figure("hooks", "tile", unit="ns")),
    ),
    "graph": (
        ("cost of planning a kernel that is new to the process, warm journal", "at most 100 µs",
         figure("graph", "planning", "meets", "µs")),
        ("the same, a kernel that the process knows", "at most 100 µs",
         figure("graph", "planning", "is known", "µs")),
        ("the same, the first kernel of a process, which reads a journal of 64 kernels", "",
         figure("graph", "planning", "reads the journal", "µs")),
        ("cost of an execution, left undivided", "at most 1000 ns",
         figure("graph", case="undivided", unit="ns")),
        ("cost of a slice, compared with the program's own loop over its plans", "at most 1000 ns",
         figure("graph", "slice", unit="ns")),
    ),
    "calls": (
        ("time of a call of the array functions beyond the engine's own", "",
         figure("overhead", case="convolution_forward", unit="µs")),
        ("the same, `mucudnn.torch.conv2d` without gradient", "at most 20 µs",
         figure("overhead", case="conv2d without gradient", unit="µs")),
        ("the same, `mucudnn.torch.conv2d` with gradient", "",
         figure("overhead", case="conv2d with gradient", unit="µs")),
        ("time of a call of `conv2d` that runs PyTorch's own, beyond that", "",
         figure("overhead", case="runs PyTorch's own", unit="µs")),
        ("cost of a converted layer that runs PyTorch's own", "", by_case("cold_calls", "cost", unit="µs")),
    ),
    "kernels": (
        ("time of our fastest algorithm over stock PyTorch's, 36 kernels, one thread: geometric mean, best "
         "to worst", "0.75", mean("kernels", case="1 thread")),
        ("the same, forward", "", mean("kernels", case="forward, 1 thread")),
        ("the same, backward data", "", mean("kernels", case="backward_data, 1 thread")),
        ("the same, backward filter", "", mean("kernels", case="backward_filter, 1 thread")),
        ("the same on two threads, all passes", "0.85", mean("kernels", case="2 threads")),
        ("the same, forward", "", mean("kernels", case="forward, 2 threads")),
        ("the same, backward data", "", mean("kernels", case="backward_data, 2 threads")),
        ("the same, backward filter", "", mean("kernels", case="backward_filter, 2 threads")),
        ("rows above 1.5", "none", above("kernels", 1.5)),
    ),
    "planning": (
        ("simulated time of VGG-16, N=256, within 12 GiB of a Titan X, relative to no limit: joint",
         "at most 1.01", figure("memory", "time over", "12 GiB, joint", digits=4)),
        ("the same, without division", "", figure("memory", "time over", "12 GiB, without division")),
        ("the same, without recompute", "",
         figure("memory", "time over", "12 GiB, without recompute", digits=4)),
        ("the same, without offload", "",
         figure("memory", "time over", "12 GiB, without offload", digits=4)),
        ("the same, vDNN's dynamic policy (the paper: 1.22)", "1.18 to 1.23",
         figure("memory", "time over", "12 GiB, dynamic")),
        ("speedup of joint over dynamic", "at least 1.15", figure("memory", "speedup of joint", "12 GiB")),
        ("below vDNN's least memory, joint", "runs down to 10.4 GiB: 10.25 GiB without the mini-batch",
         by_case("memory", "time over", ", joint", digits=4)),
        ("time of planning ResNet-50, N=256", "at most 10 s",
         by_case("memory", "planning", "resnet50", "s")),
        ("time of planning VGG-16, N=256", "at most 1 s", by_case("memory", "planning", "vgg16", "s")),
    ),
    "workspace": (
        ("time of AlexNet forward, run whole within a limit: best undivided algorithms", "",
         by_case("workspace", "undivided", unit="ms")),
        ("the same, divided", "", by_case("workspace", ", divided", unit="ms")),
    ),
    "spatial": (
        ("share of a model's convolution work that ran divided over 2 ranks", "at least 0.8",
         figure("survey")),
        ("processor time of a video decoder on 4 ranks relative to one process, converted", "at most 1.15",
         by_case("spatial", "decoder: seconds")),
        ("its memory on the largest rank relative to one process", "at most 0.35",
         by_case("spatial", "decoder: bytes")),
    ),
    "recognised": (
        ("share of PyTorch's convolution calls that the drop-in recognises, ten networks, all passes, fused",
         "at least 99 %", recognised("recognised_torch")),
        ("the same, convolutions that cudnn-frontend fuses with addition, bias and RELU, NCHW and NHWC",
         "at least 99 %", recognised("recognised_frontend")),
        ("the same, convolutions of onnxruntime, also with bias, addition and RELU, and transposed",
         "at least 99 %", recognised("recognised_onnxruntime")),
    ),
}  # fmt: skip
