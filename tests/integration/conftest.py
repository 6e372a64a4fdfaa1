from clients import host_engine, programs
from desk import desk
from nvidia_library import compiling_stubs, cudnn, stubs

__all__ = [
    "compiling_stubs",
    "cudnn",
    "desk",
    "host_engine",
    "programs",
    "stubs",
]  # fixtures for every test of this folder
