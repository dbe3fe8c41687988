"""The commands: `stpn eval` on devices, the study and its tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stpn import robustness
from stpn.cli import main
from stpn.report import faults
from stpn.report import robustness as report
from stpn.robustness import FAULTS, Plan, read_study, study

ROOT = Path(__file__).parents[2]


def test_evaluation_on_devices(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", "art-rnn", "--json"]
    found = []
    for seed in ("1", "1", "2"):
        assert main([*command, "--device-profile", "pcm", "--device-seed", seed]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["proficiency"] == found[1]["proficiency"] != found[2]["proficiency"]
    assert found[0]["devices"] == {"profile": "pcm", "seed": 1, "seconds": 0.0}
    assert main([*command, "--device-seed", "1"]) == 2
    assert main([*command, "--device-profile", "pcm", "--device-time", "-1"]) == 2


def test_a_study_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "study"
    command = ["analog", "study", "--out", str(out), "--draws", "2", "--sequences", "32"]
    command += ["--tuning", "2", "--networks", "art-stpnr", "art-rnn", "--faults"]
    assert main([*command, "none"]) == 0
    assert main([*command, "none", "pcm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(set(lines)) + 1  # nothing is measured twice; the directory is printed
    cells = json.loads((out / "art-stpnr.json").read_text())["cells"]
    assert set(cells) == {
        "none/0", "none/0/tuned", "pcm/0", "pcm/86400", "pcm/0/tuned", "pcm/86400/tuned",
    }  # fmt: skip
    assert cells["none/0"]["proficiency"] == [100.0]
    assert cells["none/0"]["energy"]["writes"] == 528
    assert len(cells["pcm/0"]["proficiency"]) == 2
    docs = tmp_path / "docs"
    docs.mkdir()
    marks = "".join(f"<!-- {name} -->\nstale\n<!-- /{name} -->\n" for name in report.MARKS)
    (docs / "analog.md").write_text(f"before\n{marks}after\n")
    assert main(["analog", "table", str(out), "--docs", str(docs)]) == 0
    text = (docs / "analog.md").read_text()
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert "|  | STPNr | RNN |" in text
    assert "all of the profile pcm, 1 day, fine-tuned" in text
    assert "stale" not in text
    assert (docs / "figures" / "analog-faults.svg").exists()
    assert main([*command[:-1], "--seed", "1", "--faults", "none"]) == 2  # another plan
    assert main(["analog", "study", "--faults", "nonsense"]) == 2
    assert main(["analog", "table", str(tmp_path / "nothing")]) == 1


def test_all_faults_are_possible_devices() -> None:
    for fault in robustness.FAULTS.values():
        for size in fault.sizes:
            fault.device(size)
    assert set(robustness.networks()) >= {"art-stpnr", "art-lstm", "maze-stpnr", "maze-lstm"}


def test_agents_play_other_episodes_in_each_draw_and_learn_on_devices(tmp_path: Path) -> None:
    plan = Plan(draws=2, episodes=2, iterations=1)
    study(["maze-rnn"], ["none", "drift"], plan, tmp_path)
    cells = read_study(tmp_path)["maze-rnn"]["cells"]
    month = f"drift/{30 * robustness.DAY:g}"
    assert set(cells) == {"none/0", month, "none/0/tuned", f"{month}/tuned"}
    assert all(len(cell["proficiency"]) == 2 for cell in cells.values())
    assert cells["none/0"]["power"][0] != cells["none/0"]["power"][1]
    assert cells["none/0"]["power"] != cells["none/0/tuned"]["power"]


def _network(model: str, task: str = "art", **cells: list[float]) -> faults.Network:
    filled = {
        key: {"proficiency": numbers, "power": numbers, "joules": numbers}
        for key, numbers in cells.items()
    }
    plan = {"draws": 10, "sequences": 9, "episodes": 9, "tuning": 0, "iterations": 0}
    return {"task": task, "model": model, "plan": plan, "cells": filled}


def test_the_answer_follows_from_the_numbers() -> None:
    clean, few = {"none/0": [100.0]}, [50.0, 51.0, 49.0]
    ours = _network("stpnr", **clean, **{"stuck/0.05": few, "w_bits/4": [99.0], "pcm/0": few})
    theirs = _network("lstm", **clean, **{"stuck/0.05": [80.0, 82.0, 78.0], "w_bits/4": [60.0]})
    assert faults.against(ours, theirs, "stuck/0.05") == "lower"
    assert faults.against(ours, theirs, "w_bits/4") == "higher"
    assert faults.against(ours, theirs, "pcm/0") is None
    text = faults.answer([ours, theirs])
    assert "**neither more nor less robust**: of 2, it keeps more in 1 (w bits 4)" in text
    assert "less in 1 (stuck 0.05)" in text
    del ours["cells"]["stuck/0.05"]
    assert "**more robust**: of 1, it keeps more in 1 (w bits 4)." in faults.answer([ours, theirs])
    for network in (ours, theirs):
        network["cells"]["w_bits/6"] = network["cells"]["none/0"]
    assert "**in part more robust**: of 2, it keeps more in 1" in faults.answer([ours, theirs])
    wide = _network("lstm", **clean, **{"w_bits/4": [20.0, 100.0, 60.0]})
    assert "no difference that can be told: all 1 cannot be told" in faults.answer([ours, wide])


def test_the_answer_tells_what_other_plastic_networks_keep() -> None:
    larger = [f"{name}/{FAULTS[name].sizes[-1]:g}" for name in faults.OF_F]
    half = {key: [50.0] for key in larger}
    same = {key: [100.0] for key in larger}
    networks = [
        _network(model, **{"none/0": [100.0]}, **cells)
        for model, cells in (("stpnr", half), ("lstm", same), ("rnn", same), ("modplast", half))
    ]
    text = faults.answer(networks)
    assert "ModPlast 50%, 50%, 50%, 50%." in text
    assert "RNN 100%" not in text


def test_the_answer_has_the_write_energy_of_the_networks() -> None:
    """rest 10 pJ and 100 pJ, 1,000 synapses: 90 fJ for write and norm, of which the norm is 77."""
    pair = []
    for model, dac, many in (("stpnr", 10e-12, 1000.0), ("lstm", 100e-12, 0.0)):
        network = _network(model, **{"none/0": [1.0]})
        terms = {"dac": dac, "write": many * 1e-12, "digital": many * 77e-15}
        network["cells"]["none/0"]["energy"] = {**terms, "writes": many, "normalised": many}
        pair.append(network)
    text = faults.answer(pair)
    assert "less than **90 fJ** a step together: below 13 fJ for the write, after 77 fJ" in text
    pair[0]["cells"]["none/0"]["energy"]["dac"] = 50e-12
    text = faults.answer(pair)
    assert "**50 fJ** a step together. A digital norm takes 77 fJ, more than that" in text


def test_docs_of_this_repository_say_what_the_study_says() -> None:
    networks = report.measured(ROOT / "results" / "analog")
    text = (ROOT / "docs" / "analog.md").read_text()
    for name, content in report.parts(networks).items():
        assert f"<!-- {name} -->\n{content}\n<!-- /{name} -->" in text
    picture = (ROOT / "docs" / "figures" / "analog-faults.svg").read_text()
    assert report.description(networks) in picture


def test_the_report_shows_the_study() -> None:
    networks = report.measured(ROOT / "results" / "analog")
    titles = [table.title for table in report.tables(networks)]
    assert "ART on devices with faults, proficiency" in titles
    (art, *_) = report.plots(networks, 9)
    assert (art.number, len(art.panels)) == (9, 10)
    assert [curve.x[0] for curve in art.panels[0].curves] == [0.0] * len(art.panels[0].curves)
    stuck = next(panel for panel in art.panels if panel.title == "Stuck cells")
    assert stuck.curves[0].x.tolist() == [0.0, 1.0, 5.0]
    assert report.read(ROOT / "nothing") is None


def test_sizes_in_words() -> None:
    words = {name: [fault.label(s) for s in fault.sizes] for name, fault in FAULTS.items()}
    assert words["drift"] == ["1 h", "30 days"]
    assert words["pcm"] == ["fresh", "1 day"]
    assert words["stuck"] == ["0.01", "0.05"]
    assert words["none"] == [""]
