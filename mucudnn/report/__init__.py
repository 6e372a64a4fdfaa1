"""The report: the numbers (`gather`), the plots (matplotlib) and the page (jinja2).

`gather` and `curves` need neither matplotlib nor jinja2; `plots` and `page` do, and are imported late.
"""

from importlib.util import find_spec

from mucudnn.errors import MucudnnError


def check_installed() -> None:
    """Raises MucudnnError where what plots and page are made with is not installed."""
    missing = [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]
    if missing:
        raise MucudnnError(f"{' and '.join(missing)} not installed: pip install 'mucudnn[report]'")
