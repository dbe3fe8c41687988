"""Search: what flags mean, and the way from a search to a run."""

from __future__ import annotations

import json

import pytest

from stpn import experiments
from stpn.cli import main, train
from stpn.errors import ConfigError
from stpn.runs import Run
from stpn.scale.space import Choice, Range, parse

CONFIG = experiments.default_config("art", "stpnr")
TINY = {"epochs": 4, "train_size": 300, "validation_size": 100, "test_size": 20}
FLAGS = [word for key, value in TINY.items() for word in (f"--{key.replace('_', '-')}", str(value))]


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("lr=1e-4:1e-2:log", Range(1e-4, 1e-2, log=True, whole=False)),
        ("lr=0:1", Range(0, 1, log=False, whole=False)),
        ("hidden_size=8:32", Range(8, 32, log=False, whole=True)),
        ("batch_size=32:512:log", Range(32, 512, log=True, whole=True)),
        ("norm=pre,post,none", Choice(("pre", "post", "none"))),
        ("norm_scale=true,false", Choice((True, False))),
        ("clamp=0.1,None", Choice((0.1, None))),
    ],
)
def test_a_flag_is_a_domain(word, meaning):
    (domain,) = parse([word], CONFIG).values()
    assert domain == meaning


def test_ends_of_whole_ranges_are_included():
    tune = pytest.importorskip("ray.tune")
    domain = Range(3, 5, log=False, whole=True).domain(tune)
    assert {domain.sample() for _ in range(200)} == {3, 4, 5}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to search"),
        (["lr"], "a search is NAME=LOW:HIGH"),
        (["lr="], "a search is NAME=LOW:HIGH"),
        (["lr=1:x"], "a range is LOW:HIGH"),
        (["lr=1e-4:1e-2:exp"], "a range is LOW:HIGH"),
        (["lr=1:0"], "must be in order"),
        (["lr=0:1:log"], "in order and above 0"),
        (["lr=-1:1"], "lr must be finite and >= 0"),
        (["lrr=0:1"], "unknown setting of art 'lrr'"),
        (["norm=pre,past"], "norm must be one of"),
        (["epochs=1:5"], "epochs cannot be searched; set it with --epochs"),
        (["lr=0:1", "lr=0:2"], "lr is searched twice"),
    ],
)
def test_a_flag_that_means_nothing_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        parse(words, CONFIG)


@pytest.mark.slow
def test_from_a_search_to_a_run(ray, tmp_path, capsys):
    """Found, written, taken by `stpn train`; a second search goes on with nothing left to do."""
    arguments = ["tune", "art", "--model", "stpnr", "--trials", "3", "--grace", "1"]
    arguments += ["--search", "lr=1e-3:1e-1:log", "hidden_size=4,6", "--out", str(tmp_path)]
    arguments += [*FLAGS, "--json"]
    assert main(arguments) == 0
    *rows, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert last["event"] == "tuned"
    assert last["finished"]
    assert {row["event"] for row in rows} == {"row"}
    assert len({row["trial"] for row in rows}) == 3

    place = tmp_path / "art" / "stpnr"
    best = json.loads((place / "best.json").read_text())
    trials = json.loads((place / "trials.json").read_text())["trials"]
    scores = [trial["row"]["proficiency"] for trial in trials]
    assert scores == sorted(scores, reverse=True)
    assert {name: best[name] for name in ("lr", "hidden_size")} == trials[0]["settings"]
    assert 1e-3 <= best["lr"] <= 1e-1
    assert best["hidden_size"] in (4, 6)

    config, *_ = train.parse(["--config", str(place / "best.json")])
    assert config.to_dict() == best
    out = str(tmp_path / "runs")
    assert main(["train", "--config", str(place / "best.json"), "--out", out, "--quiet"]) == 0
    run = Run.open(tmp_path / "runs" / config.directory)
    assert run.config == best
    assert run.metrics()[-1]["proficiency"] == trials[0]["row"]["proficiency"]

    capsys.readouterr()
    assert main(arguments) == 2  # what Ray kept of it is not read unasked
    assert "add --trusted to go on" in capsys.readouterr().err
    assert main([*arguments, "--trusted"]) == 0
    (again,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert again["best"] == best
    assert main([*arguments, "--lr", "0.5"]) == 2
    assert "holds another search" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--trials", "0"], "trials must be >= 1"),
        (["--grace", "500"], "grace must be between 1 and 4"),
        (["--reduction", "1"], "reduction must be > 1"),
        (["--config", "x.json"], "--config is a result of tune"),
    ],
)
def test_impossible_searches_are_refused_before_anything_starts(tmp_path, capsys, flags, message):
    pytest.importorskip("ray")
    assert main(["tune", "art", *FLAGS, *flags, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_ray_kept_of_a_search_is_not_read_unasked(tmp_path, capsys):
    pytest.importorskip("ray")
    (tmp_path / "art" / "stpnr" / "ray").mkdir(parents=True)
    assert main(["tune", "art", "--model", "stpnr", *FLAGS, "--out", str(tmp_path)]) == 2
    assert "add --trusted to go on" in capsys.readouterr().err
