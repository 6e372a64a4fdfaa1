"""A program that plays scripts on libcudnn.so.9.

    python client_process.py LIBRARY SCRIPTS.pickle TRACES.pickle PROGRESS FIRST

It appends the traces one by one, and keeps in PROGRESS the script and the step that it plays. After a crash
the files say where it happened.
"""

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
