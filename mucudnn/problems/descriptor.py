"""A problem as text and as columns, beside its full descriptor."""

import re

from mucudnn._native import Problem

# Columns of the cache, named like the parts of a descriptor.
GEOMETRY = ("g", *(a + b for a in "io" for b in "cdhw"), *(a + b for a in "kspd" for b in "dhw"))


def problem_key(problem: Problem) -> str:
    """The descriptor without its mini-batch, which is what measurements at all sizes share."""
    return re.sub(r"mb\d+", "", str(problem))


def short_text(problem: Problem, *, mini_batch: bool = True) -> str:
    """The shortest descriptor: `mb64_ic64ih27_oc192_kh5_ph2+relu`, with or without the mini-batch."""
    said = (problem.data_type, problem.layout, problem.math)
    prefix = "".join(
        f"{word}:" for word, usual in zip(said, ("f32", "nchw", "default"), strict=True) if word != usual
    )
    groups = f"g{problem.groups}" if problem.groups > 1 else ""
    batch = f"mb{problem.mini_batch}" if mini_batch else ""
    sizes = _sizes(problem)
    parts = [
        groups + batch,
        f"ic{problem.in_channels}" + _spatial("i", sizes["i"]),
        f"oc{problem.out_channels}",
        _spatial("k", sizes["k"]),
        *(_spatial(a, sizes[a]) for a, usual in (("s", 1), ("p", 0), ("d", 0)) if set(sizes[a]) != {usual}),
    ]
    return prefix + "_".join(part for part in parts if part) + problem.epilogue


def geometry(problem: Problem) -> dict[str, int]:
    """The GEOMETRY columns, as in the descriptor; a 2-D problem has none for the depth."""
    axes = "dhw"[3 - problem.dims :]
    columns = {
        a + b: size for a, sizes in _sizes(problem).items() for b, size in zip(axes, sizes, strict=True)
    }
    return {"g": problem.groups, "ic": problem.in_channels, "oc": problem.out_channels, **columns}


def _sizes(problem: Problem) -> dict[str, tuple[int, ...]]:
    return {
        "i": problem.input,
        "o": problem.output,
        "k": problem.kernel,
        "s": problem.stride,
        "p": problem.padding,
        "d": tuple(size - 1 for size in problem.dilation),  # a descriptor counts from 0
    }


def _spatial(letter: str, sizes: tuple[int, ...]) -> str:
    """Sizes along the axes, without those at the end that repeat the one before: readers fill them in."""
    kept = len(sizes)
    while kept > 1 and sizes[kept - 1] == sizes[kept - 2]:
        kept -= 1
    axes = "dhw"[3 - len(sizes) :]
    return "".join(f"{letter}{axis}{size}" for axis, size in zip(axes[:kept], sizes[:kept], strict=True))
