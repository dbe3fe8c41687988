"""The commands: `stpn eval` on devices, the study and its tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stpn import robustness
from stpn.cli import main


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
    assert len(cells["pcm/0"]["proficiency"]) == 2
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "analog.md").write_text("before\n<!-- study -->\nold\n<!-- /study -->\nafter\n")
    assert main(["analog", "table", str(out), "--docs", str(docs)]) == 0
    text = (docs / "analog.md").read_text()
    assert text.startswith("before")
    assert "| fault | size | STPNr | RNN |" in text
    assert "old" not in text
    assert (docs / "figures" / "analog-faults.svg").exists()
    assert main([*command[:-1], "--seed", "1", "--faults", "none"]) == 2  # another plan
    assert main(["analog", "study", "--faults", "nonsense"]) == 2
    assert main(["analog", "table", str(tmp_path / "nothing")]) == 1


def test_all_faults_are_possible_devices() -> None:
    for fault in robustness.FAULTS.values():
        for size in fault.sizes:
            fault.device(size)
    assert set(robustness.networks()) >= {"art-stpnr", "art-lstm", "maze-stpnr", "maze-lstm"}
