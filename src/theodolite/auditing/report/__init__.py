"""The report: `write_report` for the page, `summary_table` for a terminal."""

from theodolite.auditing.report.page import render, write_report
from theodolite.auditing.report.terminal import summary_table

__all__ = ["render", "summary_table", "write_report"]
