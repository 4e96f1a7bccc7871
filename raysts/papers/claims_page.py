"""The page of a paper's claims: a forest plot and a table, also as Markdown."""

from collections.abc import Sequence
from pathlib import Path

from raysts.papers.verdicts import AS_NO, CONTRADICTED, NOT_SEEN, SEEN, ClaimsData, Verdict
from raysts.report import html
from raysts.report.charts.forest import Estimate, forest_plot
from raysts.storage.store import Store

HEADS = ("Claim", "Source", "Published", "Measured", "Difference", "p (Holm)", "Verdict")
VERDICTS = {
    SEEN: "the difference is shown, in the paper's direction",
    NOT_SEEN: "no difference is shown",
    CONTRADICTED: "a difference is shown that the words of the claim exclude",
    AS_NO: "the paper says that it does not help, and no help is shown",
}


def write_report(data: ClaimsData, folder: Path) -> Path:
    """Write the page and ``claims.md`` into ``folder`` and return the page's path."""
    with Store.of(folder).put(folder / "claims.md") as draft:
        draft.write_text(markdown(data), encoding="utf-8")
    return html.write_page(render(data), folder)


def render(data: ClaimsData) -> str:
    """Return the page as HTML."""
    estimates = [
        Estimate(_short(each), 100 * each.difference, 100 * each.low, 100 * each.high, each.verdict or "")
        for each in data.verdicts
        if each.difference is not None and each.low is not None and each.high is not None and each.why is None
    ]
    chart = forest_plot("forest", f"Claims of {data.paper}: differences x 100", estimates) if estimates else None
    other = any(each.claim.in_place_of for each in data.verdicts)
    return html.render("papers/claims.html", data=data, chart=chart, rows=rows(data), verdicts=VERDICTS, other=other)


def _short(found: Verdict) -> str:
    """Return the claim for the chart, which has a legend for the marks."""
    return f"{found.claim.says} †" if found.claim.in_place_of else found.claim.says


def rows(data: ClaimsData) -> list[Sequence[str]]:
    """Return the rows of the table, its header first."""
    return [HEADS, *map(row, data.verdicts)]


def row(found: Verdict) -> Sequence[str]:
    """Return a claim as a row of text, with values times 100."""
    claim = found.claim
    says = claim.marked + (" (transductive)" if found.transductive else "")
    if found.a is None or found.b is None or found.difference is None:
        return says, claim.source, claim.printed, "", "", "", f"not measured: {found.why}"
    counts = " and ".join(str(count) for count in (found.models[1], found.models[0]))
    measured = f"{100 * found.b:.2f} -> {100 * found.a:.2f} ({counts} models; {', '.join(found.on)})"
    interval = "" if found.low is None or found.high is None else f" [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
    p = "" if found.p_holm is None else "<1e-4" if found.p_holm < 1e-4 else f"{found.p_holm:.2g}"
    verdict = f"not measured: {found.why}" if found.why else found.verdict or "nothing is concluded without resamples"
    return says, claim.source, claim.printed, measured, f"{100 * found.difference:+.2f}{interval}", p, verdict


def markdown(data: ClaimsData) -> str:
    """Return the table as Markdown."""
    made = f"`{data.command}`\n\n{data.seeds} seeds from {data.backbone}, {data.created_at}\n\n"
    return made + html.markdown_table(rows(data))


def text(data: ClaimsData) -> str:
    """Return the claims of a paper for a terminal, one a line."""
    shown = [row(each) for each in data.verdicts]
    width = max(len(each[-1].partition(":")[0]) for each in shown)
    lines = [f"{data.paper}: {data.seeds} seeds from {data.backbone}"]
    for says, source, printed, _, difference, _, said in shown:
        verdict, _, why = said.partition(": ")
        paper = f"; {printed}" if printed else ""
        lines.append(f"  {verdict:<{width}}  {says}  {' '.join(filter(None, (difference, why)))}  ({source}{paper})")
    return "\n".join(lines)
