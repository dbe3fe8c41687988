"""Options of a model's own class, from the command line to the core."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stpn
from stpn import experiments, zoo
from stpn.cli import main
from stpn.config import from_dict
from stpn.errors import ConfigError
from stpn.runs import Run, find


def test_they_reach_the_core(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--epochs", "1", "--train-size", "20", "--validation-size", "5", "--test-size", "5"]
    command = ["train", "art", "--model", "fastweights", "--core", "steps=2", "decay=0.5", *flags]
    assert main([*command, "--quiet"]) == 0
    (run,) = find("runs")
    assert run.config["core"] == ["steps=2", "decay=0.5"]
    network: Any = stpn.load(run.path)
    x = torch.randn(1, 4, 37)
    same = stpn.build("fastweights", 37, 20, batch_first=True, steps=2, decay=0.5)
    same.load_state_dict(network.core.state_dict())
    torch.testing.assert_close(network.core(x)[0], same(x)[0])
    assert "--core steps=2 decay=0.5" in zoo.command(from_dict(Run.open(run.path).config))
    assert main(["resume", str(run.path), "--total", "2", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stepz=2"], r"unknown option of fastweights 'stepz' \(did you mean 'steps'"),
        (["bidirectional=true"], "unknown option of fastweights 'bidirectional'"),
        (["steps=two"], "fastweights refuses its settings: steps"),
        (["num_layers=2"], "num_layers is a setting of its own: --num-layers"),
        (["steps"], "core takes KEY=VALUE"),
    ],
)
@pytest.mark.parametrize("task", ["art", "retrieval-p3"])
def test_wrong_ones_are_refused(task: str, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stpn.build_network(experiments.default_config(task, "fastweights", core=words))


def test_help_lists_them(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["train", "art", "--model", "fastweights", "--help"])
    assert "steps=1 (turns of the inner loop per time step)" in capsys.readouterr().out
