"""The end of each help text: commands to type."""


def format_examples(*commands: str) -> str:
    """Return the end of a help text."""
    return "\n".join([f"example{'s' * (len(commands) > 1)}:", *(f"  {command}" for command in commands)])
