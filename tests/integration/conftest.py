from clients import host_engine, programs

__all__ = ["host_engine", "programs"]  # fixtures for every test of this folder
