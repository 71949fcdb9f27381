"""Files of the site: a page with its scripts, the index, and a file a run that the page loads when it is opened.

Browsers let a page from disk load scripts, but neither fetch files nor import modules; so data are scripts too, each a
call of a function that takes JSON.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from runcatalog.analysis import groups
from runcatalog.model import values
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Operation, Project
from runcatalog.model.record_files import write_text
from runcatalog.model.run_record import RunRecord
from runcatalog.pages.tables.page_data import with_intervals
from runcatalog.record.delivery.mlflow_client import chunks
from runcatalog.site import headlines, index, media, run_pages

HERE = Path(__file__).parent
STYLES = (
    "vendor/tabulator-6.5.3/tabulator_simple.min.css",
    "vendor/uplot-1.6.32/uPlot.min.css",
    "assets/style.css",
)
SCRIPTS = (
    "vendor/tabulator-6.5.3/tabulator.min.js",
    "vendor/uplot-1.6.32/uPlot.iife.min.js",
    *(
        f"assets/{name}.js"
        for name in (
            *("elements", "formats", "records/statistics", "records/columns", "records/runs"),
            *("records/query", "records/names", "records/settings", "charts", "run_table"),
            *("pages/front", "pages/runs", "pages/run", "pages/compare", "pages/batch"),
            *("pages/lists", "site"),
        )
    ),
)
_BLOCK = 40  # runs that a single page compresses together; `runs.BLOCK` of the page is the same
_ONE_FILE_DIGITS = 4
_RUN_FILE = re.compile(r"[0-9a-f]{8,32}\.js")
_HEAD = 4096  # bytes of a page, in which its mark stands
_MARK = '<meta name="generator" content="catalog site">'


class Site:
    """The site of a project.

    Args:
        project: The project.
        records: All records.
        local: Ids of the runs that have no up-to-date committed record.
        watched: Seconds after which an open page looks for new runs; 0 for never.
        figures: Figures of the catalog by run; see :mod:`runcatalog.site.media`. A single file has none.
        recorded: Videos and pictures by run.
        title: Heading of the site; by default the project's name.
    """

    def __init__(
        self,
        project: Project,
        records: Sequence[RunRecord],
        local: Collection[str] = (),
        watched: float = 0,
        figures: media.Media | None = None,
        recorded: media.Media | None = None,
        title: str = "",
    ) -> None:
        self.project = project
        self.records = sorted(with_intervals(records, project.intervals()), key=groups.order)
        self.local = frozenset(local)
        self.watched = watched
        self.figures = figures or {}
        self.recorded = recorded or {}
        self.title = values.text(title) or f"Runs of {project.name}"

    def write(self, folder: Path) -> int:
        """Write the site's folder; return the number of files that changed. Files of runs that are gone are removed.

        Raises:
            CatalogError: The folder holds something else, or cannot be written.
        """
        check_folder(folder)
        written: int = write_text(folder / "index.html", self._page(linked=True))
        for name in (*STYLES, *SCRIPTS):
            written += write_text(folder / name, (HERE / name).read_text(encoding="utf-8"))
        for license_ in sorted(HERE.glob("vendor/*/LICENSE")):
            copied = folder / license_.relative_to(HERE)
            written += write_text(copied, license_.read_text(encoding="utf-8"))
        data, kept, shown = folder / "data", set(), set()
        for record, content in self._run_pages(run_pages.DIGITS):
            files = self._media(record.run)
            written += sum(media.copy(path, folder / name) for name, path in files.items())
            content |= {"media": list(files)} if files else {}
            shown |= {folder / name for name in files}
            path = data / "runs" / f"{record.run}.js"
            kept.add(path.name)
            written += write_text(path, _call("runs.receive", record.run, content))
        for path in sorted(data.glob("runs/*.js")):
            if path.name not in kept and _RUN_FILE.fullmatch(path.name):
                path.unlink()
                written += 1
        for place in (media.FIGURES, media.COPIES):
            for path in sorted((folder / place).rglob("*")):
                if path.is_file() and path not in shown:
                    path.unlink()
                    written += 1
        index_, metrics = self._index()
        written += write_text(data / "metrics.js", metrics)
        written += write_text(data / "index.js", index_)
        # Last, since an open page loads the others as soon as this one changes.
        version = hashlib.sha256((index_ + metrics).encode()).hexdigest()[:16]
        written += write_text(data / "version.js", _call("site.version", version))
        return written

    def one_file(self, path: Path) -> None:
        """Write the whole site as a single page.

        Raises:
            CatalogError: The file is another one, or cannot be written.
        """
        check_file(path)
        write_text(path, self._page(linked=False))

    def _media(self, run: str) -> dict[str, Path]:
        """Return the files that a run's page shows, by their place in the site."""
        files = {media.place(path): path for path in self.figures.get(run, ())}
        return files | {media.place(path, run): path for path in self.recorded.get(run, ())}

    def _index(self) -> tuple[str, str]:
        """Return the scripts with the index and with the metrics."""
        facts = {"title": self.title, **index.index(self.project, self.records, self.local)}
        facts |= headlines.results(self.project, self.records)
        if self.watched:
            facts["watched"] = self.watched
        return _call("runs.index", facts), _call("runs.metrics", index.metrics(self.records))

    def _run_pages(self, digits: int) -> Iterator[tuple[RunRecord, dict[str, Any]]]:
        declared: Mapping[str, Operation] = self.project.operations()
        trials: dict[str, list[RunRecord]] = {}
        for record in self.records:
            trials.setdefault(record.batch, []).append(record)
        for record in self.records:
            yield record, run_pages.run_page(declared, record, trials.get(record.run, []), digits)

    def _page(self, *, linked: bool) -> str:
        template = (HERE / "assets/page.html").read_text(encoding="utf-8")
        names = {"title": html.escape(self.title), "generator": _MARK}
        if linked:
            names["styles"] = "\n".join(f'<link rel="stylesheet" href="{name}">' for name in STYLES)
            # The version first: an index that is written between the two is loaded once more, not missed.
            scripts = (*SCRIPTS, "data/version.js", "data/index.js")
            names["scripts"] = "\n".join(f'<script src="{name}"></script>' for name in scripts)
        else:
            styles = (_asset(name) for name in STYLES)
            names["styles"] = "\n".join(f"<style>{content}</style>" for content in styles)
            scripts = (*map(_asset, SCRIPTS), *self._index())
            inline = [f"<script>{content}</script>" for content in scripts]
            names["scripts"] = "\n".join([*self._blocks(), *inline])
        return re.sub(r"\{\{ (\w+) \}\}", lambda match: names[match[1]], template)

    def _blocks(self) -> list[str]:
        """Return elements with the compressed pages of some runs each, which the page unpacks when one is opened."""
        elements = []
        for number, pages in enumerate(chunks(self._run_pages(_ONE_FILE_DIGITS), _BLOCK)):
            block = {record.run: content for record, content in pages}
            packed = base64.b64encode(gzip.compress(orjson.dumps(block), 9, mtime=0)).decode()
            elements.append(f'<script type="text/plain" id="runs-{number}">{packed}</script>')
        return elements


def _asset(name: str) -> str:
    """Return a file to put inside of an element."""
    content = (HERE / name).read_text(encoding="utf-8")
    return content.replace("</script", "<\\/script").replace("</style", "<\\/style")


def _call(function: str, *arguments: Any) -> str:
    """Return a script that calls a function; in its JSON no text can end the element around it."""
    words = (orjson.dumps(each).decode().replace("<", "\\u003c") for each in arguments)
    return f"{function}({', '.join(words)});\n"


def check_folder(folder: Path) -> None:
    """Check that a site may be written to a folder: it is new, empty or holds a site.

    Raises:
        CatalogError: It holds something else, or is no folder.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CatalogError(f"{folder}: a folder is expected")
    if not _is_site(folder / "index.html") and any(folder.iterdir()):
        raise CatalogError(f"{folder} holds other files: -o names a new folder, or one of a site")


def check_file(path: Path) -> None:
    """Check that a site may be written to a single file: it is new, or a site.

    Raises:
        CatalogError: It is another file, or a folder.
    """
    if path.is_dir():
        raise CatalogError(f"{path} is a folder: with --one-file, -o names a file")
    if path.exists() and not _is_site(path):
        raise CatalogError(f"{path} is another file: -o names a new one, or one of a site")


def _is_site(page: Path) -> bool:
    if not page.is_file():
        return False
    with page.open("rb") as file:
        return _MARK.encode() in file.read(_HEAD)
