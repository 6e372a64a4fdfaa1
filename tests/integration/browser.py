"""Chromium without a window, driven through its DevTools protocol over two pipes."""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_SECONDS = 300


def find_chromium() -> str | None:
    """Return the path of a Chromium or Chrome, None if the machine has none."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """A browser with one page. It records the page's requests and its errors."""

    def __init__(self, chromium: str, profile: Path) -> None:
        command = [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={profile}",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
        ]  # fmt: skip
        browser_reads, self._write = os.pipe()
        self._read, browser_writes = os.pipe()
        # The browser reads from descriptor 3 and writes to 4.
        script = f'exec "$@" 3<&{browser_reads} 4>&{browser_writes}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(browser_reads, browser_writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(browser_reads)
        os.close(browser_writes)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(_SECONDS)
        os.close(self._read)
        os.close(self._write)

    def open(self, page: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a file on a screen of `width` by `height` CSS pixels."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.requests.clear()
        self.errors.clear()
        self.call("Page.navigate", url=page.absolute().as_uri())
        deadline = time.monotonic() + _SECONDS
        while self.evaluate("document.readyState + location.href") != f"complete{page.absolute().as_uri()}":
            assert time.monotonic() < deadline, f"{page} does not load"

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result. Events that arrive before it are recorded."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _receive(self) -> Any:
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], _SECONDS)[0], "the browser does not answer"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, f"the browser ended with {self._process.poll()}"
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def _note(self, event: Any) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Log.entryAdded":
                self.errors.append(parameters["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.errors.append(parameters["exceptionDetails"]["text"])
            case "Runtime.consoleAPICalled":
                self.errors.append(str(parameters["args"]))
