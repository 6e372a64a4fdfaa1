"""The report: the numbers (`gather`), the plots (matplotlib) and the page (jinja2).

`plots` and `page` need matplotlib and jinja2, which may not be installed: import them where they are used.
"""

from importlib.util import find_spec

from mucudnn.errors import MissingExtraError
from mucudnn.extras import install_command


def check_installed() -> None:
    """Raise MissingExtraError if jinja2 or matplotlib, which the page needs, is not installed."""
    missing = [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"{' and '.join(missing)} not installed: {install_command('report')}")
