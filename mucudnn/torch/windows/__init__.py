"""Spans of rows, the windows that operators read, and boxes of tensors."""
