"""Print the results' folder's name, made of device and library.

This is a process of its own, because a process that has opened a GPU keeps some of its memory, and on some
machines keeps all other processes out of it.
"""

from __future__ import annotations

import argparse
import re

from mucudnn.errors import MucudnnError
from mucudnn.measuring.engines import open_engine


def main() -> None:
    """Open the engine, and print the name of the results' folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine")
    try:
        engine = open_engine(parser.parse_args().engine, 1)
    except MucudnnError as error:
        raise SystemExit(str(error)) from None
    print(re.sub(r"[^\w.]+", "-", f"{engine.device}-{engine.library}"))


if __name__ == "__main__":
    main()
