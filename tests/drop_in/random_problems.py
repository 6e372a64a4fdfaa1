"""Small random problems. Their number is limited, so that scripts share their measurements."""

from random import Random

from mucudnn._native import Problem

GEOMETRIES = 48
MINI_BATCHES = (1, 2, 3, 5, 7, 8, 13, 16, 17, 40, 64, 65, 67)
PASSES = ("forward", "backward_data", "backward_filter")
ALGORITHMS = {"forward": 8, "backward_data": 6, "backward_filter": 7}  # the number of enumerators
# The enumerators that run every problem, and all that the host engine has.
GEMMS = {"forward": (0, 2), "backward_data": (0, 1), "backward_filter": (0, 1)}
RUNNABLE = {"forward": (0, 2, 5, 7), "backward_data": (0, 1, 3, 5), "backward_filter": (0, 1, 5, 6)}


def geometry(number: int, mini_batch: int) -> Problem:
    random = Random(f"geometry {number}")
    dims = random.choice((2, 2, 2, 3))
    is_plain = random.random() < 0.5  # all algorithms run a plain problem
    sizes = (4, 5, 6, 7, 8, 9) if dims == 2 else (3, 4, 5)
    input_ = tuple(random.choice(sizes) for _ in range(dims))
    if mini_batch == 1:  # large enough for algorithms in tiles
        input_ = tuple(8 * size - 1 for size in input_) if dims == 2 else (4 * input_[0], *input_[1:])
    if is_plain:
        kernel, stride, dilation, groups = (3,) * dims, (1,) * dims, (1,) * dims, random.choice((1, 1, 2))
        padding = (1,) * dims
    else:
        kernel = tuple(random.choice((1, 2, 3, 3, 4)) for _ in range(dims))
        stride = tuple(random.choice((1, 1, 2, 3)) for _ in range(dims))
        dilation = tuple(random.choice((1, 1, 2)) for _ in range(dims))
        groups = random.choice((1, 1, 1, 2, 3))
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
        least = [max(0, (r - i + 1) // 2) for r, i in zip(reach, input_, strict=True)]
        padding = tuple(p + random.choice((0, 1)) for p in least)
    return Problem(
        mini_batch=mini_batch,
        in_channels=groups * random.choice((1, 2, 3, 4)),
        out_channels=groups * random.choice((1, 2, 3, 5)),
        input=input_,
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        data_type="f32" if is_plain else random.choice(("f32", "f64", "f16", "bf16")),
        layout=random.choice(("nchw", "nchw", "nhwc")),
    )


def mini_batches(number: int) -> list[int]:
    """Return the few mini-batches of a geometry."""
    return Random(f"batches {number}").sample(MINI_BATCHES, 3)


def any_problem(random: Random) -> Problem:
    number = random.randrange(GEOMETRIES)
    return geometry(number, random.choice(mini_batches(number)))


def batches_of(random: Random, problem: Problem) -> list[int]:
    """Return the mini-batches of a program: that of the problem, and often smaller ones."""
    smaller = [size for size in MINI_BATCHES if size < problem.mini_batch]
    more = random.sample(smaller, min(len(smaller), random.choice((0, 1, 1, 2))))
    return [problem.mini_batch, *more]
