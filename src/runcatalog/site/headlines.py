"""Headline results and findings of the studies for the first page, computed as for the catalog's front page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runcatalog.analysis.headline_numbers import Measured
from runcatalog.model.project import Project
from runcatalog.model.run_record import RunRecord
from runcatalog.pages import front_page
from runcatalog.pages.tables.page_data import PageData
from runcatalog.text import terminal


def results(project: Project, records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the declared headlines as rows of text, and the finding of every study that has one.

    Raises:
        CatalogError: A declared headline is invalid.
    """
    operations = project.operations()
    data = PageData(records, operations, project.reported(), project.pending(operations))
    computed = front_page.Results(project, data)
    studies = project.ordered_studies({*computed.measured, *computed.declared.findings})
    return {
        "headlines": [
            _row(computed, data, measured)
            for study in studies
            for measured in computed.measured.get(study, {}).values()
        ],
        "findings": {
            study: terminal.plain(finding)
            for study in studies
            if (finding := computed.finding(study))
        },
    }


def _row(computed: front_page.Results, data: PageData, measured: Measured) -> dict[str, Any]:
    headline, number = measured.headline, measured.number
    report = data.reported.get(headline.operation)
    return {
        "study": headline.study,
        "question": headline.question,
        "measured": terminal.plain(front_page.measured_text(measured)),
        "reported": terminal.plain(front_page.reported_text(headline)),
        "seeds": computed.runs.seeds(headline, number) if number else "–",
        "same": headline.same_setting or (report and report.same_setting) or "–",
        "runs": [run.run for run in number.runs] if number else [],
    }
