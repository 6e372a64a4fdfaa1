from clients import host_engine, programs
from desk import desk

__all__ = ["desk", "host_engine", "programs"]  # fixtures for every test of this folder
