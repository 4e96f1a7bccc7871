"""HTML and SVG text from Python values: everything is escaped unless it was made here."""

from __future__ import annotations

import html
import math
import re

# Not allowed in XML 1.0: control characters (a failed run's reason may hold terminal colours) and lone surrogates.
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Markup that ``tag`` or ``join`` made: safe to nest, never escaped again."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """``value`` as text of an element or an attribute; ``Markup`` stays as it is."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_NOT_TEXT.sub("\ufffd", str(value))))


def join(*parts: object, by: str = "") -> Markup:
    """Parts one after the other, each escaped unless it is ``Markup``; None is left out."""
    return Markup(by.join(escape(part) for part in parts if part is not None))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """One element.

    ``class_`` is written ``class``, other underscores as hyphens; an attribute that is None is left out. Elements
    without children close themselves, as SVG wants and as HTML's void elements allow.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def _plain(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def hundredfold(value: float) -> str:
    """A score as the tables show it: times 100, two decimals."""
    return f"{100 * value:.2f}"


def quantity(value: float | None) -> str:
    """A number with about three significant digits and thousands apart; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
