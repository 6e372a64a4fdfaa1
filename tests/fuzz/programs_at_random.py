"""The random programs: for each name, the tests that read TEST_SEED and TEST_CASES."""

PROGRAMS: dict[str, list[str]] = {
    "faults": ["tests/drop_in/test_random_faults.py"],
    "interruptions": ["tests/integration/test_random_interruptions.py"],
    "kills": ["tests/integration/test_cache_faults.py", "-k", "killed_at_any_moment"],
    "clients": ["tests/drop_in/test_random_programs.py"],
    "threads": ["tests/integration/test_shim_threads.py", "-k", "any_case"],
    "damage": ["tests/integration/test_damaged_cache.py"],
    "arguments": ["tests/unit/test_odd_arguments.py"],
    "models": ["tests/frameworks/test_torch_random_models.py"],
    "compiled": ["tests/frameworks/test_torch_compiled_gradients.py", "-k", "all_gradients"],
}
