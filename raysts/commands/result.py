"""The result of a run, as Python and notebooks show it."""

from __future__ import annotations

import html
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysts.commands.options import Result
from raysts.log import columns, fold

if TYPE_CHECKING:
    import pyarrow as pa

    from raysts.evaluation.standings import Standings


class RunResult(Result):
    """Fields of the JSON line of a run, with its first table.

    ``result["results"]`` and all other fields are those of the line. ``repr`` is what the terminal shows.
    """

    def __init__(self, fields: Mapping[str, Any], table: Standings | None = None) -> None:
        super().__init__(fields)
        self._table = table

    @property
    def model(self) -> Path | None:
        """Return the folder of the delivered model, or None."""
        return Path(self["model"]) if self["model"] else None

    @property
    def report(self) -> Path | None:
        """Return the page of the run, or None."""
        return Path(self["report"]) if self["report"] else None

    @property
    def scores(self) -> pa.Table:
        """Return the rows of the results as an Arrow table, which has ``to_pandas()``."""
        import pyarrow as pa

        return pa.Table.from_pylist(self["results"])

    def main_scores(self) -> dict[str, float]:
        """Return the scores of the first table, times 100, as ``student/stsb``."""
        lines = self._table.plot_lines if self._table else ()
        return {f"{line.role}/{name}": 100 * value.value for line in lines for name, value in line.mean.items()}

    @property
    def verdict(self) -> str:
        """Return what is delivered and how it compares, or nothing before that is known."""
        from raysts.pipeline.verdict import Delivered

        return Delivered(**self["delivered"]).sentence if self.get("delivered") else ""

    def __repr__(self) -> str:
        """Return what the terminal shows: the verdict, the model, the first table, the notes."""
        from raysts.evaluation.cost import cost_rows
        from raysts.evaluation.standings import align_columns, format_results
        from raysts.report.scores import as_text

        lines = [fold(self.verdict)] if self.verdict else []
        if self["model"]:
            lines.append(f"model:  {self['model']}")
        lines.append(f"report: {self['report']}")
        if self["model"]:
            lines.append(f"next:   raysts embed {shlex.quote(self['model'])} --input FILE --column TEXT --output DIR")
        if self._table:
            lines += ["", as_text(self._table, columns())]
        elif self["results"]:
            lines += ["", format_results(self["results"], brief=True)]
        if costs := cost_rows(self.get("models", [])):
            lines += ["", *align_columns(costs, range(len(costs[0])))]
        if self.get("notes"):
            lines += ["", "notes:", *(fold(f"- {note}") for note in self["notes"])]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the same for a notebook, with a link to the page."""
        page = html.escape(str(self["report"]))
        link = f'<a href="{html.escape(self.report.as_uri())}">{page}</a>' if self.report else page
        return f"<pre>{html.escape(repr(self)).replace(f'report: {page}', f'report: {link}')}</pre>"


def run_text(result: Result) -> str:
    """Return the result of a run as text."""
    return repr(result if isinstance(result, RunResult) else RunResult(result))
