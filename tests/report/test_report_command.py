"""`stpn report` and `stpn figure`, from the directory of runs to the files."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest
from synthetic import write_grid, write_result

pytest.importorskip("matplotlib")

from stpn.cli import main
from stpn.report import build
from stpn.runs import Run
from stpn.zoo import Shelf, ship

FIGURES = ("figure1-proficiency", "figure2-power", "figure3-power-proficiency", "figure4-ablation")


def test_a_report_of_trained_runs(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("The **spread** is small.")
    out = tmp_path / "out"
    assert main(["report", str(trained), "--out", str(out), "--notes", str(notes)]) == 0
    printed = capsys.readouterr().out
    assert "Associative retrieval" in printed
    assert f"page: {out / 'index.html'}" in printed
    for name in (*FIGURES, "figure5-synapses", "figure6-rates"):
        for suffix in ("svg", "png"):
            assert (out / "figures" / f"{name}.{suffix}").stat().st_size > 1000
    markdown, page = (out / "report.md").read_text(), (out / "index.html").read_text()
    assert "The **spread** is small." in markdown
    assert "The <strong>spread</strong> is small." in page
    for picture in re.findall(r"\]\(([^)]+)\)", markdown):
        assert (out / picture).is_file(), picture
    data = json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.S)[1])
    names = [n["name"] for n in data["networks"] if "package" not in n["name"]]
    models = ("STPNr", "STPNl", "STPNf uniform", "LSTM", "ModPlast")
    assert names == [f"{model}, seed 0" for model in models]
    assert "trained for under 1% of the paper's length" in data["networks"][0]["about"]
    assert "GRU: the page cannot run GRU" in page


def test_results_without_checkpoints_say_why_the_viewer_is_empty(tmp_path: Path) -> None:
    written = build(write_grid(tmp_path / "results", tasks=["art"], seeds=1), tmp_path / "out")
    assert not written.report.grid.problems
    page = written.page.read_text()
    assert "No trained network" in page
    assert "no checkpoint beside its results" in page
    assert not list((tmp_path / "out/figures").glob("figure5*"))
    for name in FIGURES:
        assert (tmp_path / "out/figures" / f"{name}.svg").is_file()


@pytest.mark.slow
def test_checkpoints_kept_beside_exported_results_are_shown(trained: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    flags = ["--checkpoints", "--unfinished"]
    assert main(["export", str(trained), str(results), *flags]) == 0
    page = build(results, tmp_path / "out").page.read_text()
    assert "STPNr, seed 0" in page
    assert "no checkpoint beside its results" not in page


@pytest.mark.slow
def test_networks_of_a_shelf_stand_in_for_checkpoints(trained: Path, tmp_path: Path) -> None:
    card = ship(Run(trained / "art/stpnr/seed0"), 1, tmp_path / "networks")
    ship(Run(trained / "art/lstm/seed0"), 1, tmp_path / "networks")
    write_result(tmp_path / "results", "art", "stpnr", 0)
    written = build(tmp_path / "results", tmp_path / "out", shelf=Shelf(tmp_path / "networks"))
    page = written.page.read_text()
    assert "STPNr, from the package" in page
    assert "LSTM, from the package" in page  # also where nothing was run
    assert [picture.number for picture in written.report.pictures] == [5, 6]
    words = f"art-stpnr of the package: seed 0, 11 hidden units, accuracy {card.proficiency:.2f}%"
    assert words in (tmp_path / "out/figures/figure5-synapses.svg").read_text()


@pytest.fixture
def nothing_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package had no networks: their pictures take longer than the rest of a report."""
    monkeypatch.setattr("stpn.zoo.pretrained", Shelf(tmp_path / "no networks"))


@pytest.mark.usefixtures("nothing_shipped")
def test_one_damaged_run_does_not_cost_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_result(tmp_path / "runs", "art", "stpnr", 0)
    (tmp_path / "runs/art/stpnr/seed7.json").write_text("[1,")
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    assert "seed7.json" in capsys.readouterr().out
    assert "seed7.json" in (tmp_path / "out/report.md").read_text()
    assert (tmp_path / "out/figures/figure1-proficiency.svg").is_file()


def test_a_damaged_checkpoint_costs_its_figures_only(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs/art/stpnr/seed0"
    run.mkdir(parents=True)
    for file in (trained / "art/stpnr/seed0").iterdir():
        if file.is_file():
            (run / file.name).write_bytes(file.read_bytes())
    (run / "checkpoint.safetensors").write_bytes(b"\0" * 100)
    written = build(tmp_path / "runs", tmp_path / "out")
    assert re.search(r"Not in the viewer: STPNr: [^<]* is damaged", written.page.read_text())
    assert not written.report.pictures
    assert (tmp_path / "out/figures/figure1-proficiency.svg").is_file()


@pytest.mark.slow
def test_an_empty_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir()
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    assert "no run was found" in capsys.readouterr().out
    assert "98.55 ± 2.76" in (tmp_path / "out/report.md").read_text()
    drawn = (tmp_path / "out/figures").iterdir()
    assert {path.name[:7] for path in drawn} == {"figure5", "figure6", "figure7"}


def test_pictures_of_an_earlier_report_do_not_stay(tmp_path: Path) -> None:
    write_result(tmp_path / "runs", "art", "stpnr", 0)
    build(tmp_path / "runs", tmp_path / "out")
    assert list((tmp_path / "out/figures").iterdir())
    (tmp_path / "none").mkdir()
    build(tmp_path / "none", tmp_path / "out")
    assert not list((tmp_path / "out/figures").iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "nowhere"], "nowhere does not exist"),
        (["report", ".", "--notes", "nowhere.md"], "cannot read nowhere.md"),
        (["figure", "synapses", "nowhere"], "there is no run at nowhere, and no network"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_directory_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "file").write_text("")
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "file/out")]) == 1
    assert "cannot write the report" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_shipped")
def test_the_report_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = write_grid(tmp_path / "results", tasks=["art"])
    assert main(["report", str(results), "--out", str(tmp_path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["verdicts"]["art"]["complete"] == 45
    assert content["problems"] == []
    assert all(Path(path).is_file() for path in content["files"])


@pytest.mark.parametrize("what", ["synapses", "rates"])
def test_figures_of_one_run(
    what: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained / "art/stpnr/seed0"
    assert main(["figure", what, str(run), "--out", str(tmp_path / "x")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / f"x.{s}") for s in ("svg", "png")]
    assert str(run) in (tmp_path / "x.svg").read_text()


def test_without_matplotlib_the_extra_is_named(
    full_results: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from stpn._extras import MissingExtra

    def missing(module: str, *, extra: str) -> None:
        raise MissingExtra(f"pip install 'stpn-torch[{extra}]'")

    monkeypatch.setattr(sys.modules["stpn.report.build"], "need", missing)
    assert main(["report", str(full_results), "--out", str(tmp_path / "out")]) == 1
    assert "stpn-torch[report]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()  # nothing is begun that cannot be ended


@pytest.mark.slow
def test_five_hundred_runs_in_half_a_minute(tmp_path: Path) -> None:
    write_grid(tmp_path / "runs", seeds=14)  # 36 groups
    clock = time.process_time()  # other work on the machine is not the report's
    written = build(tmp_path / "runs", tmp_path / "out")
    seconds = time.process_time() - clock
    assert sum(1 for _ in written.report.grid.runs) >= 500
    assert seconds < 30
    assert written.page.stat().st_size < 1_500_000
