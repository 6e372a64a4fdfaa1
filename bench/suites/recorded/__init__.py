"""The engine, the decisions and the solver on a CPU."""
