"""Training on several devices."""
