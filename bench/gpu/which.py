"""`python -m bench.gpu.which ENGINE`: the name of its device and library, as that of a results' folder.

A process of its own, because one that has opened a GPU keeps some of its memory, and on some machines keeps
all others out of it.
"""

from __future__ import annotations

import argparse
import re

from mucudnn.errors import MucudnnError
from mucudnn.measuring.engines import open_engine


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.which", description=__doc__)
    parser.add_argument("engine")
    try:
        engine = open_engine(parser.parse_args().engine, 1)
    except MucudnnError as error:
        raise SystemExit(str(error)) from None
    print(re.sub(r"[^\w.]+", "-", f"{engine.device}-{engine.library}"))


if __name__ == "__main__":
    main()
