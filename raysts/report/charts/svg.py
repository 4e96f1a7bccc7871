"""Elements of SVG drawings from Python values. Every text and attribute is escaped."""

from markupsafe import Markup


def tag(name: str, /, *children: Markup | str | None, **attributes: object) -> Markup:
    """Return one element.

    The attribute ``class_`` becomes ``class``, other underscores become hyphens. Attributes and children that are None
    are omitted.
    """
    markup = Markup().join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _plain(value))
        for key, value in attributes.items()
        if value is not None
    )
    if not children:
        return Markup(f"<{name}{markup}/>")
    return Markup(f"<{name}{markup}>{Markup().join(child for child in children if child is not None)}</{name}>")


def _plain(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def drawing(name: str, title: str, description: str, parts: list[Markup], width: float, height: float) -> Markup:
    """Return a drawing of ``width`` by ``height`` pixels, with title and description as text.

    ``name`` is unique in the page.
    """
    return tag(
        "svg",
        tag("title", title, id=f"{name}-t"),
        tag("desc", description, id=f"{name}-d"),
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}",
        height=f"{height:g}",
        role="img",
        aria_labelledby=f"{name}-t {name}-d",
        class_="chart",
    )


def figure(caption: str, content: Markup) -> Markup:
    """Return a drawing, or a table, with its caption."""
    return tag("figure", tag("figcaption", caption), content)


def polyline(points: list[tuple[float, float]], class_: str | None = None) -> Markup:
    """Draw a line through pixels."""
    return tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=class_)
