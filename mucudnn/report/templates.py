"""The templates of the pages. Their output is escaped for HTML and free of hidden characters."""

from collections.abc import Mapping

import jinja2
from markupsafe import Markup

from mucudnn import __version__
from mucudnn.output.printable import printable
from mucudnn.output.text import micro_batches, milliseconds, ratio
from mucudnn.sizes import format_size


def render_page(template: str, palette: Mapping[str, tuple[str, str]], **values: object) -> str:
    """Return a page from a template of this folder, with its colours on white and on a dark page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mucudnn", "report"),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(size=format_size, ms=milliseconds, ratio=ratio, micro_batches=micro_batches)
    return environment.get_template(template).render(palette=palette, version=__version__, **values)
