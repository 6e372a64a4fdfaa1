"""A program that plays scripts on libcudnn.so.9, in a process of its own.

    python client_process.py LIBRARY SCRIPTS.pickle TRACES.pickle PROGRESS FIRST

The traces are appended one by one, and PROGRESS tells which step of which script is being played, so that a
crash can be told by what is on disk.
"""

from __future__ import annotations

import ctypes
import mmap
import pickle
import struct
import sys

from player import Player


def main(library: str, scripts: str, traces: str, progress: str, first: str) -> None:
    dll = ctypes.CDLL(library)
    with open(scripts, "rb") as file:
        cases = pickle.load(file)
    with open(progress, "r+b") as file, open(traces, "ab") as written:
        place = mmap.mmap(file.fileno(), 16)
        for number in range(int(first), len(cases)):

            def note(step: int, number: int = number) -> None:
                struct.pack_into("qq", place, 0, number, step)

            player = Player(dll, note)
            trace = player.play(cases[number])
            player.close()
            pickle.dump(trace, written)
            written.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
