"""A Python harness under atheris, which guides new inputs by the code that they reach.

python guided.py NAME [libFuzzer's arguments]
"""

import gc
import sys
from types import FunctionType

import atheris
from harnesses import HARNESSES


def instrument() -> None:
    """Count the code that inputs reach in mucudnn's functions.

    atheris's hook of imports does not count modules of an editable installation.
    """
    for item in gc.get_objects():
        if isinstance(item, FunctionType) and str(item.__module__).startswith("mucudnn"):
            atheris.instrument_func(item)


if __name__ == "__main__":
    check = HARNESSES[sys.argv.pop(1)]
    instrument()
    atheris.Setup(sys.argv, lambda data: check(data) and None)
    atheris.Fuzz()
