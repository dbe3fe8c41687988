"""The report inside the repository: made from the results, filled in between marks, and still true.

When a test at the end fails: stpn report results --docs docs --readme README.md
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import pytest
from synthetic import write_grid, write_result

pytest.importorskip("matplotlib")

import stpn
from stpn.cli import main
from stpn.cli.report import read_notes
from stpn.report import Report, gather, memory
from stpn.report.figures import description
from stpn.report.publish import BEGIN, END, docs_page, readme_part

ROOT = Path(__file__).parents[2]


PUBLISH = ["report", "results", "--docs", "docs", "--readme", "README.md"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repository")
    write_grid(path / "results", tasks=["art"], seeds=2)
    (path / "results/notes.md").write_text("Ours is *faster*.")
    (path / "README.md").write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nThe rest.\n")
    (path / "docs/figures").mkdir(parents=True)
    (path / "docs/figures/figure9-stale.svg").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        assert main(PUBLISH) == 0
    return path


@pytest.fixture
def repository(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(published, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_docs_and_readme_are_made_from_the_results(repository: Path) -> None:
    readme = (repository / "README.md").read_text()
    assert readme.startswith(f"# Title\n\n{BEGIN}\n![Power against proficiency](docs/figures/")
    assert readme.endswith(f"{END}\n\nThe rest.\n")
    assert "old" not in readme
    assert re.search(r"\| Associative retrieval, accuracy \(%\) \| STPNr \| . \*\*\d", readme)
    assert "98.55 ± 2.76" in readme
    assert "2 of 5 seeds" in readme
    assert "not finished yet: Maze exploration (STPNr, LSTM, RNN, ModPlast); Atari Pong" in readme
    page = (repository / "docs/results.md").read_text()
    assert "Ours is *faster*." in page
    for text, place in ((readme, repository), (page, repository / "docs")):
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert (place / target).is_file(), target
    assert not (repository / "docs/figures/figure9-stale.svg").exists()


@pytest.mark.slow
def test_again_it_changes_nothing(repository: Path) -> None:
    files = [repository / "README.md", *(repository / "docs").rglob("*.*")]
    before = {path: path.read_bytes() for path in files}
    assert main(PUBLISH) == 0
    assert {path: path.read_bytes() for path in before} == before


def test_what_cannot_be_written_leaves_the_old_page_whole(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (repository / "docs/results.md").read_bytes()
    (repository / "results/notes.md").write_text("Other notes.")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert main(PUBLISH) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert (repository / "docs/results.md").read_bytes() == before


def test_what_is_short_is_said(repository: Path) -> None:
    write_result(repository / "results", "maze", "stpnr", 0, reach=0.4)
    write_result(repository / "results", "maze", "lstm", 0, reach=0.4, finished=False)
    text = readme_part(gather(repository / "results"), Path("docs"))
    (row,) = re.findall(r"\| Maze exploration.*", text)
    assert "◔" in row
    assert "1 of 3 seeds, 40% of the paper's length" in row


def test_a_readme_without_marks_is_left_alone(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "README.md").write_text("# Title\n")
    assert main(PUBLISH) == 2
    assert "README.md has no place for this" in capsys.readouterr().err
    assert (repository / "README.md").read_text() == "# Title\n"


def test_a_readme_needs_docs(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "results", "--readme", "README.md"]) == 2
    assert "--docs" in capsys.readouterr().err


@pytest.fixture(scope="module")
def report() -> Report:
    results = ROOT / "results"
    return gather(results, notes=read_notes(results, None), shelf=stpn.pretrained)


def test_docs_of_this_repository_are_up_to_date(report: Report) -> None:
    assert not report.grid.problems
    assert (ROOT / "docs/results.md").read_text() == docs_page(report)


def test_the_page_of_the_memory_suite_is_up_to_date(report: Report) -> None:
    assert (ROOT / "docs/memory-suite.md").read_text() == memory.page(report.grid)


def test_figures_of_this_repository_are_up_to_date(report: Report) -> None:
    figures = ROOT / "docs/figures"
    expected = {plot.stem: description(plot) for plot in report.plots if plot.panels}
    expected |= {picture.stem: picture.caption for picture in report.pictures}
    assert {path.stem for path in figures.glob("figure*.svg")} == set(expected)
    for stem, words in expected.items():
        text = (figures / f"{stem}.svg").read_text()
        assert words.replace("&", "&amp;").replace("<", "&lt;") in text, stem


def test_readme_of_this_repository_is_up_to_date(report: Report) -> None:
    readme = (ROOT / "README.md").read_text()
    part = readme.partition(BEGIN)[2].partition(END)[0]
    assert part.strip() == readme_part(report, Path("docs")).strip()
