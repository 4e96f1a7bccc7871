"""The HTML pages of the reports: one skeleton, one style sheet, templates in which every value is escaped.

A page is one self-contained file that needs neither network nor scripts.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from raysts.storage.store import Store
from raysts.training.monitor import duration

# Not allowed in XML 1.0: control characters (a failed run's reason may hold terminal colours) and lone surrogates.
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def render(template: str, **values: object) -> str:
    """Fill ``template``, a path below this folder or below the package, with ``values``; a missing value is an error."""
    return _NOT_TEXT.sub("\ufffd", _TEMPLATES.get_template(template).render(values))


def write_page(html: str, folder: Path) -> Path:
    """Write a page as ``folder/index.html``, in place of the one that is there, and return that path."""
    path = folder.absolute() / "index.html"
    with Store.of(folder).put(path) as draft:
        draft.write_text(html, encoding="utf-8")
    return path


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text, the head first, as a table to be pasted."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def hundredfold(value: float) -> str:
    """A score as the tables show it: times 100, two decimals."""
    return f"{100 * value:.2f}"


def quantity(value: float | None) -> str:
    """A number with about three significant digits and thousands apart; a dash where there is none."""
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
