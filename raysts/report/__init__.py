"""The report of a pipeline: one self-contained HTML file."""

from raysts.report.data import ReportData
from raysts.report.page import render, write_report

__all__ = ["ReportData", "render", "write_report"]
