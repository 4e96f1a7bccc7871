"""Elements of SVG drawings from Python values; every text and attribute is escaped."""

from markupsafe import Markup


def tag(name: str, /, *children: Markup | str | None, **attributes: object) -> Markup:
    """One element.

    ``class_`` is written ``class``, other underscores as hyphens; an attribute or a child that is None is left out.
    """
    written = Markup().join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _plain(value))
        for key, value in attributes.items()
        if value is not None
    )
    if not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{Markup().join(child for child in children if child is not None)}</{name}>")


def _plain(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def drawing(name: str, title: str, described: str, parts: list[Markup], width: float, height: float) -> Markup:
    """A drawing of so many pixels, whose title and description say in words what it shows; ``name`` is unique in the page."""
    return tag(
        "svg",
        tag("title", title, id=f"{name}-t"),
        tag("desc", described, id=f"{name}-d"),
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}",
        height=f"{height:g}",
        role="img",
        aria_labelledby=f"{name}-t {name}-d",
        class_="chart",
    )


def figure(caption: str, content: Markup) -> Markup:
    """A drawing, or a table, with its caption."""
    return tag("figure", tag("figcaption", caption), content)


def polyline(points: list[tuple[float, float]], class_: str | None = None) -> Markup:
    """A line through pixels."""
    return tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=class_)
