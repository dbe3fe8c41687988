"""Sweeps: what is planned, skipped, resumed, survived and reported."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from stpn import experiments, results
from stpn._extras import MissingExtra
from stpn.cli import main
from stpn.errors import ConfigError
from stpn.runs import Run, find
from stpn.sweep import Job, LocalExecutor, plan
from stpn.training import session

TINY = {"epochs": 1, "train_size": 60, "validation_size": 20, "test_size": 20}
FLAGS = [word for key, value in TINY.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def tiny(model="stpnr", seed=0, **settings):
    return experiments.default_config("art", model, seed=seed, threads=1, **{**TINY, **settings})


def events_of(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_plan_says_what_is_left_to_do(tmp_path):
    configs = [tiny(seed=seed) for seed in range(3)]
    Run.create(tmp_path / configs[1].directory, configs[1].to_dict())
    done = Run.create(tmp_path / configs[2].directory, configs[2].to_dict())
    done.write_summary(replace(results.result_of(done).summary, done=1, finished=True))
    assert [job.state for job in plan(configs, tmp_path)] == ["new", "stopped", "finished"]
    longer = [tiny(seed=2, epochs=5)]
    assert [job.state for job in plan(longer, tmp_path)] == ["stopped"]
    with done.lock():
        assert plan([tiny(seed=2)], tmp_path)[0].state == "running"


def test_a_finished_run_with_other_settings_is_not_taken_for_this_one(tmp_path, capsys):
    session.start(tiny(), tmp_path)
    assert plan([tiny()], tmp_path)[0].state == "finished"
    (job,) = plan([tiny(lr=0.5)], tmp_path)
    assert job.state == "refused"
    other = ["sweep", "art", "--models", "stpnr", "--seeds", "1", *FLAGS, "--lr", "0.5"]
    assert main([*other, "--out", str(tmp_path), "--dry-run"]) == 0
    assert "refused" in capsys.readouterr().out
    (result,) = LocalExecutor().execute([job], lambda event: None)
    assert result.status == "failed"
    assert "its lr is 0.001, not 0.5" in result.message


def test_plan_refuses_the_same_run_twice(tmp_path):
    with pytest.raises(ConfigError, match="contains art/stpnr/seed0 twice"):
        plan([tiny(), tiny(lr=0.1)], tmp_path)


def test_all_models_of_the_paper_times_its_seeds(tmp_path, capsys):
    assert main(["sweep", "art", "--dry-run", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9 * 5
    assert lines[0] == f"new       {tmp_path}/art/stpnr/seed0"
    assert lines[-1] == f"new       {tmp_path}/art/hebbff/seed4"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["art", "--seeds", "0"], "seeds must be >= 1"),
        (["art", "--model", "lstm"], "--model makes no sense for a grid"),
        (["arts"], "unknown task 'arts'"),
        ([], "name the tasks of the grid: art, "),
        (["art", "--storage", "fetch", *FLAGS], "--storage is for a sweep on Ray"),
        (["art", "--jobs", "0", "--dry-run"], "jobs must be >= 1"),
        (["art", "--models", "ltsm"], "unknown model 'ltsm'"),
        (["art", "--epochs", "0"], "epochs must be >= 1"),
        (["art", "--jobs", "0", *FLAGS], "jobs must be >= 1"),
    ],
)
def test_impossible_grids_are_refused_before_anything_starts(tmp_path, capsys, arguments, message):
    assert main(["sweep", *arguments, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_sweep_skips_resumes_survives_and_names_failures(tmp_path, capsys):
    """Two models, two seeds: one run finished before, one damaged, two to do."""
    arguments = ["sweep", "art", "--models", "stpnr", "rnn", "--seeds", "2", "--jobs", "2"]
    arguments += ["--out", str(tmp_path), "--json", *FLAGS]
    damaged = Run.create(tmp_path / "art/rnn/seed1", tiny("rnn", 1).to_dict())
    damaged.checkpoint.write_bytes(b"not a checkpoint")
    assert main(arguments) == 1
    events = events_of(capsys)
    assert events[0] == {"event": "planned", "runs": 4, "finished": 0}
    assert events[-1]["counts"] == {"finished": 3, "failed": 1}
    assert events[-1]["failures"] == [str(damaged.path)]
    (failure,) = (e for e in events if e["event"] == "result" and e["status"] == "failed")
    assert "damaged or not a safetensors file" in failure["message"]
    assert damaged.checkpoint.read_bytes() == b"not a checkpoint"
    assert {run.status for run in find(tmp_path) if run.path != damaged.path} == {"finished"}
    assert Run.open(tmp_path / "art/stpnr/seed0").config["threads"] == 1

    damaged.checkpoint.unlink()
    before = (tmp_path / "art/stpnr/seed0/summary.json").stat().st_mtime_ns
    assert main(arguments) == 0
    events = events_of(capsys)
    assert events[0] == {"event": "planned", "runs": 4, "finished": 3}
    assert events[-1]["counts"] == {"finished": 1, "skipped": 3}
    assert (tmp_path / "art/stpnr/seed0/summary.json").stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_worker_that_is_killed_is_named_and_the_rest_goes_on(tmp_path):
    killed = []

    def on_event(event):
        if event.kind == "started" and not killed:
            killed.append(event.job)
            executor._processes[event.job].send_signal(signal.SIGKILL)

    long = tiny(seed=0, epochs=1000)
    executor = LocalExecutor(workers=1)
    jobs = plan([long, tiny(seed=1)], tmp_path)
    first, second = executor.execute(jobs, on_event)
    assert (first.status, second.status) == ("failed", "finished")
    assert first.message == "killed by signal 9"


@pytest.mark.slow
def test_ctrl_c_saves_all_runs_and_the_same_command_goes_on(tmp_path):
    command = [sys.executable, "-m", "stpn", "sweep", "art", "--models", "stpnr", "--seeds", "2"]
    command += ["--jobs", "2", "--out", str(tmp_path), "--json", *FLAGS, "--epochs", "100000"]
    sweep = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    started = 0
    for line in sweep.stdout:
        started += json.loads(line)["event"] == "started"
        if started == 2:
            break
    time.sleep(0.5)
    sweep.send_signal(signal.SIGINT)
    events = [json.loads(line) for line in sweep.stdout]
    sweep.stdout.close()
    assert sweep.wait() == 130
    assert events[-1]["counts"] == {"stopped": 2}
    for run in find(tmp_path):
        assert run.status == "stopped"


def test_a_worker_that_cannot_start_is_a_failure_with_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys, "executable", "/bin/false" if os.path.exists("/bin/false") else "false"
    )
    (job,) = plan([tiny()], tmp_path)
    (result,) = LocalExecutor().execute([job], lambda event: None)
    assert isinstance(result.job, Job)
    assert result.status == "failed"
    assert result.message == "ended with exit code 1"


def test_workers_import_nothing_from_the_current_directory(tmp_path, monkeypatch):
    for name in ("tyro", "json", "stpn"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w')\n")
    monkeypatch.chdir(tmp_path)
    (result,) = LocalExecutor().execute(plan([tiny()], tmp_path / "runs"), lambda event: None)
    assert result.status == "finished"
    assert not (tmp_path / "executed").exists()


@pytest.mark.slow
def test_a_damaged_run_is_refused_and_the_others_go_on(tmp_path):
    jobs = [tiny(seed=seed) for seed in range(2)]
    damaged = tmp_path / jobs[0].directory
    damaged.mkdir(parents=True)
    (damaged / "config.json").write_text("[" * 100_000)
    results = LocalExecutor().execute(plan(jobs, tmp_path), lambda event: None)
    assert [result.status for result in results] == ["failed", "finished"]
    assert "config.json is damaged" in results[0].message


def test_a_missing_extra_is_said_once_and_before_anything_starts(tmp_path, monkeypatch, capsys):
    def missing(self):
        raise MissingExtra("this needs 'gymnasium'; pip install '.[rl]'")

    monkeypatch.setattr(type(experiments.get("maze").task), "check_extras", missing)
    assert main(["sweep", "maze", "--seeds", "2", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert (said.out + said.err).count("gymnasium") == 1
    assert list(tmp_path.iterdir()) == []
