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
        Estimate(title, 100 * verdict.difference, 100 * verdict.low, 100 * verdict.high, verdict.verdict or "")
        for verdict in data.verdicts
        for title in [f"{verdict.claim.says} †" if verdict.claim.in_place_of else verdict.claim.says]
        if verdict.difference is not None
        and verdict.low is not None
        and verdict.high is not None
        and verdict.why is None
    ]
    chart = forest_plot("forest", f"Claims of {data.paper}: differences x 100", estimates) if estimates else None
    other = any(verdict.claim.in_place_of for verdict in data.verdicts)
    return html.render("papers/claims.html", data=data, chart=chart, rows=rows(data), verdicts=VERDICTS, other=other)


def rows(data: ClaimsData) -> list[Sequence[str]]:
    """Return the rows of the table, its header first."""
    return [HEADS, *map(row, data.verdicts)]


def row(result: Verdict) -> Sequence[str]:
    """Return a claim as a row of text, with values times 100."""
    claim = result.claim
    says = claim.marked + (" (transductive)" if result.transductive else "")
    if result.a is None or result.b is None or result.difference is None:
        return says, claim.source, claim.printed, "", "", "", f"not measured: {result.why}"
    counts = " and ".join(str(count) for count in (result.models[1], result.models[0]))
    measured = f"{100 * result.b:.2f} -> {100 * result.a:.2f} ({counts} models; {', '.join(result.on)})"
    interval = (
        "" if result.low is None or result.high is None else f" [{100 * result.low:+.2f}, {100 * result.high:+.2f}]"
    )
    p = "" if result.p_holm is None else "<1e-4" if result.p_holm < 1e-4 else f"{result.p_holm:.2g}"
    verdict = (
        f"not measured: {result.why}" if result.why else result.verdict or "nothing is concluded without resamples"
    )
    return says, claim.source, claim.printed, measured, f"{100 * result.difference:+.2f}{interval}", p, verdict


def markdown(data: ClaimsData) -> str:
    """Return the table as Markdown."""
    header = f"`{data.command}`\n\n{data.seeds} seeds from {data.backbone}, {data.created_at}\n\n"
    return header + html.markdown_table(rows(data))


def text(data: ClaimsData) -> str:
    """Return the claims of a paper for a terminal, one a line."""
    shown = [row(cells) for cells in data.verdicts]
    width = max(len(cells[-1].partition(":")[0]) for cells in shown)
    lines = [f"{data.paper}: {data.seeds} seeds from {data.backbone}"]
    for says, source, printed, _, difference, _, conclusion in shown:
        verdict, _, why = conclusion.partition(": ")
        paper = f"; {printed}" if printed else ""
        lines.append(f"  {verdict:<{width}}  {says}  {' '.join(filter(None, (difference, why)))}  ({source}{paper})")
    return "\n".join(lines)
