"""The templates of the pages. Their output is escaped for HTML and free of hidden characters."""

import jinja2
from markupsafe import Markup

from mucudnn.output.printable import printable
from mucudnn.output.text import micro_batches, milliseconds, ratio, shortened
from mucudnn.sizes import format_size


def open_template(name: str) -> jinja2.Template:
    """Return a template of this folder, which knows the filters `size`, `ms`, `ratio` and others."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mucudnn", "report"),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        size=format_size, ms=milliseconds, ratio=ratio, micro_batches=micro_batches, shortened=shortened
    )
    return environment.get_template(name)
