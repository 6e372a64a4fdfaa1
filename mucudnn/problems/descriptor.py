"""Short texts of a problem; `str(problem)` is its full descriptor."""

import re

from mucudnn._native import Problem


def problem_key(problem: Problem) -> str:
    """Return the descriptor without its mini-batch, a key that measurements at all sizes share."""
    return re.sub(r"mb\d+", "", str(problem))


def short_text(problem: Problem, *, mini_batch: bool = True) -> str:
    """Return the shortest descriptor of a problem, such as `mb64_ic64ih27_oc192_kh5_ph2+relu`.

    Parts with their default value are omitted, and so is the mini-batch if `mini_batch` is False.
    """
    words = (problem.types, problem.layout, problem.math)
    prefix = "".join(
        f"{word}:" for word, usual in zip(words, ("f32", "nchw", "default"), strict=True) if word != usual
    )
    groups = f"g{problem.groups}" if problem.groups > 1 else ""
    batch = f"mb{problem.mini_batch}" if mini_batch else ""
    sizes = _collect_sizes(problem)
    parts = [
        groups + batch,
        f"ic{problem.in_channels}" + _format_spatial("i", sizes["i"]),
        f"oc{problem.out_channels}",
        _format_spatial("k", sizes["k"]),
        *(
            _format_spatial(a, sizes[a])
            for a, usual in (("s", 1), ("p", 0), ("d", 0))
            if set(sizes[a]) != {usual}
        ),
    ]
    return prefix + "_".join(part for part in parts if part) + problem.epilogue


def _collect_sizes(problem: Problem) -> dict[str, tuple[int, ...]]:
    return {
        "i": problem.input,
        "o": problem.output,
        "k": problem.kernel,
        "s": problem.stride,
        "p": problem.padding,
        "d": tuple(size - 1 for size in problem.dilation),  # no dilation is 0 in a descriptor, 1 in cuDNN
    }


def _format_spatial(letter: str, sizes: tuple[int, ...]) -> str:
    """Write the sizes along the axes, without equal ones at the end, which the parser of descriptors adds."""
    kept = len(sizes)
    while kept > 1 and sizes[kept - 1] == sizes[kept - 2]:
        kept -= 1
    axes = "dhw"[3 - len(sizes) :]
    return "".join(f"{letter}{axis}{size}" for axis, size in zip(axes[:kept], sizes[:kept], strict=True))
