"""The page of a study."""

from pathlib import Path

from markupsafe import Markup

from raysts.report import html
from raysts.report.study.charts import best_so_far, score_chart
from raysts.report.study.data import StudyData


def write_report(data: StudyData, folder: Path) -> Path:
    """Write the page into ``folder`` and return its path."""
    return html.write_page(render(data), folder)


def render(data: StudyData) -> str:
    """Return the page as HTML."""
    return html.render("study/page.html", data=data, charts=_charts(data), trials=sum(data.outcomes.values()))


def _charts(data: StudyData) -> list[Markup]:
    if not data.points:
        return []
    charts = [
        score_chart(f"score-{i}", option, data.points, data.metric, data.reach) for i, option in enumerate(data.options)
    ]
    return [*charts, best_so_far("best", data.ended, data.metric, data.reach)]
