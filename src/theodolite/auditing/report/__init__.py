"""The report: `write_report` for the page, `summary_table` and `pairs_table` for a terminal."""

from theodolite.auditing.report.page import render, write_report
from theodolite.auditing.report.terminal import pairs_table, summary_table

__all__ = ["pairs_table", "render", "summary_table", "write_report"]
