"""The command that installs an optional part of mucudnn."""

import json
import shlex
from urllib.parse import unquote, urlsplit

from mucudnn.forks import no_fork


def install_command(*extras: str) -> str:
    """Return the command of pip that installs extras, such as `pip install 'mucudnn[report]'`.

    A package that was installed from a folder names that folder, because no registry may have the package.
    """
    with no_fork:
        from importlib import metadata

    source, flag = "mucudnn", ""
    try:
        text = metadata.distribution("mucudnn").read_text("direct_url.json")
        origin = {} if text is None else json.loads(text)
        url = urlsplit(origin.get("url", ""))
    except (metadata.PackageNotFoundError, ValueError):
        origin, url = {}, urlsplit("")
    if url.scheme == "file" and "dir_info" in origin:
        source = unquote(url.path)
        flag = "-e " if origin["dir_info"].get("editable") else ""
    wanted = ",".join(extras)
    return f"pip install {flag}{shlex.quote(f'{source}[{wanted}]')}"
