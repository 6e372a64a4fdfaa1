"""Text without the characters that a terminal or a browser would obey instead of displaying."""

import unicodedata

# Control and format characters, such as those that reverse the direction of writing, surrogates, and
# separators of lines and paragraphs.
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str) -> str:
    """Return a text with escapes for the characters that a terminal or browser would obey; newlines stay."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character == "\n" or unicodedata.category(character) not in _UNPRINTABLE
        else character.encode("unicode_escape").decode()
        for character in text
    )
