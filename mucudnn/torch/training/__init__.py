"""Training within a memory budget: the plan, and the steps that follow it."""
