"""What a result shows, as data: sentences, tables, figures and sections, which `weft.view` renders."""

from weft.core.report.report import Figure, Part, Report, Section, SystemReport, drop_empty
from weft.core.report.table import Column, Table

__all__ = ["Column", "Figure", "Part", "Report", "Section", "SystemReport", "Table", "drop_empty"]
