"""The result of a run, as Python and notebooks show it."""

from __future__ import annotations

import html
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysts.commands.options import Result

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

    @property
    def verdict(self) -> str:
        """Return what is delivered and how it compares, or nothing before that is known."""
        from raysts.pipeline.verdict import Delivered

        return Delivered(**self["delivered"]).sentence if self.get("delivered") else ""

    def table(self, width: int) -> str:
        """Return the first table as text of at most ``width`` characters, or nothing without a test set."""
        from raysts.report.run.summary import as_text

        return as_text(self._table, width) if self._table else ""

    def __repr__(self) -> str:
        width = shutil.get_terminal_size((100, 24)).columns
        parts = [self.verdict, f"model:  {self['model']}\nreport: {self['report']}", self.table(width)]
        return "\n\n".join(filter(None, parts))

    def _repr_html_(self) -> str:
        """Return the verdict, the path of the model and the table for a notebook."""
        parts = [f"<p><b>{html.escape(self.verdict)}</b></p>", f"<p>model: <code>{html.escape(str(self.model))}</code>"]
        if self.report:
            parts.append(
                f'<br>report: <a href="{html.escape(self.report.as_uri())}">{html.escape(str(self.report))}</a>'
            )
        return "".join([*parts, f"</p><pre>{html.escape(self.table(120))}</pre>"])
