"""The workspace limits of the converted modules in a graph."""

from typing import Any
from weakref import WeakKeyDictionary

# The keys are the objects that accompany a graph's compilation.
limits_of_traces: WeakKeyDictionary[Any, list[int | None]] = WeakKeyDictionary()
