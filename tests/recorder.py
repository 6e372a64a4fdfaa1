"""A listener for tests that check what the user is told."""

from mucudnn.listener import Listener


class Recorder(Listener):
    """A listener that keeps the messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)
