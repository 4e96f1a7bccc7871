"""HTML pages of the reports.

They share one skeleton and one style sheet, and their templates escape every value. A page is one self-contained file
that needs no network. Only the map of texts has a script.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from raysts.log import duration
from raysts.storage.store import Store

# XML 1.0 forbids control characters (the error of a failed run may hold terminal colours) and lone surrogates.
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def render(template: str, **values: object) -> str:
    """Fill ``template`` with ``values``. A missing value is an error.

    The template is a path relative to this folder or to the package.
    """
    return _NOT_TEXT.sub("\ufffd", _TEMPLATES.get_template(template).render(values))


def write_page(html: str, folder: Path, name: str = "index.html") -> Path:
    """Write a page into ``folder``, replacing an earlier one, and return its path."""
    path = folder.absolute() / name
    with Store.of(folder).put(path) as draft:
        draft.write_text(html, encoding="utf-8")
    return path


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text, the head first, as a Markdown table."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def hundredfold(value: float) -> str:
    """Return a score as the tables show it: times 100, two decimals."""
    return f"{100 * value:.2f}"


def quantity(value: float | None) -> str:
    """Return a number with about three significant digits and separated thousands.

    A value that is None or not finite becomes a dash.
    """
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


_TEMPLATES = Environment(
    loader=FileSystemLoader([Path(__file__).parent, Path(__file__).parents[1]]),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters |= {"duration": duration, "hundredfold": hundredfold, "quantity": quantity}
