"""A run on disk: reading, writing, locking, exporting, and what damage looks like."""

import json
import os
import subprocess
import sys

import pytest

from stpn import experiments, results, runs
from stpn.errors import RunError, RunInUse
from stpn.runs import Run

CONFIG = {"task": "art", "model": "stpnr", "seed": 3, "epochs": 200}


def make_run(path, rows=3, config=CONFIG, summary=None):
    run = Run.create(path, config)
    for step in range(1, rows + 1):
        run.append(row(step))
    if summary is not None:
        run.write_summary(summary)
    return run


def row(step):
    return {
        "step": step,
        "proficiency": 10.0 * step,
        "power": 5.0,
        "loss": 1 / step,
        "seconds": 2.0,
    }


def summary_of(run):
    return {**results.result_of(run).summary, "proficiency": 99.0, "finished": True}


def test_create_and_open(tmp_path):
    made = make_run(tmp_path / "art" / "stpnr" / "seed3")
    opened = Run.open(made.path)
    assert opened.config == CONFIG
    assert opened.metrics() == [row(1), row(2), row(3)]
    assert opened.summary is None
    assert opened.status == "new"


def test_create_never_overwrites(tmp_path):
    make_run(tmp_path)
    with pytest.raises(RunError, match="already holds a run"):
        Run.create(tmp_path, {**CONFIG, "seed": 4})
    assert Run.open(tmp_path).config == CONFIG


def test_a_directory_without_config_is_no_run(tmp_path):
    with pytest.raises(RunError, match=r"is not a run: it holds no config.json"):
        Run.open(tmp_path)


def test_what_is_given_in_place_of_a_run_is_named(tmp_path):
    runs = [make_run(tmp_path / "art" / "stpnr" / f"seed{k}") for k in range(5)]
    (tmp_path / "seed0.json").write_text("{}")
    with pytest.raises(RunError, match=rf"holds some: {runs[0].path}, .* and 2 more"):
        Run.open(tmp_path)
    with pytest.raises(RunError, match="does not exist"):
        Run.open(tmp_path / "nothing")
    with pytest.raises(RunError, match="`stpn report` reads exported results"):
        Run.open(tmp_path / "seed0.json")


def test_a_summary_with_an_infinite_power_can_be_written(tmp_path):
    run = make_run(tmp_path)
    run.write_summary({"power": float("inf"), "power_per_step": [1.0, float("nan")]})
    assert run.summary == {"power": None, "power_per_step": [1.0, None]}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"task": "art"}'])
def test_a_damaged_config_is_named(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunError, match=r"config\.json is"):
        Run.open(tmp_path)


def test_a_torn_last_row_is_not_a_row(tmp_path):
    run = make_run(tmp_path)
    with open(run.path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 4, "profi')
    assert len(run.metrics()) == 3
    run.truncate(3)
    run.append(row(4))
    assert [r["step"] for r in run.metrics()] == [1, 2, 3, 4]


def test_a_damaged_row_inside_is_named(tmp_path):
    run = make_run(tmp_path)
    path = run.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"step": 2', b"\x00\x00"))
    with pytest.raises(RunError, match="line 2: not a row of metrics"):
        run.metrics()


def test_truncate(tmp_path):
    run = make_run(tmp_path, rows=5)
    run.truncate(2)
    assert run.metrics() == [row(1), row(2)]
    with pytest.raises(RunError, match="rows were lost"):
        run.truncate(3)


def test_status_follows_the_files(tmp_path):
    run = make_run(tmp_path)
    run.checkpoint.write_bytes(b"")
    assert run.status == "stopped"
    run.write_summary(summary_of(run))
    assert run.status == "finished"
    with run.lock():
        assert run.status == "running"


def test_lock_keeps_a_second_process_out_and_names_the_first(tmp_path):
    run = make_run(tmp_path)
    attempt = f"from stpn.runs import Run\nwith Run.open({str(tmp_path)!r}).lock(): pass"
    with run.lock():
        second = subprocess.run([sys.executable, "-c", attempt], capture_output=True, text=True)
        assert second.returncode == 1
        assert f"RunInUse: {tmp_path} is in use by process {os.getpid()} on" in second.stderr
        with pytest.raises(RunInUse), run.lock():
            pass
    assert not run.in_use
    assert subprocess.run([sys.executable, "-c", attempt]).returncode == 0


def test_lock_dies_with_its_process(tmp_path):
    run = make_run(tmp_path)
    hold = (
        f"import time\nfrom stpn.runs import Run\nwith Run.open({str(tmp_path)!r}).lock():\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    assert run.in_use
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert not run.in_use
    with run.lock():
        pass


def test_asking_whether_a_run_is_in_use_does_not_keep_others_out(tmp_path):
    run = make_run(tmp_path)
    with run.lock():
        pass
    for _ in range(50):
        assert not run.in_use
        with run.lock():
            assert run.in_use


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_directory_is_said(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(RunError, match=r"cannot create the run directory .*: Permission denied"):
        Run.create(tmp_path / "run", CONFIG)


def test_a_file_in_the_way_is_said(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(RunError, match=r"cannot create the run directory .*: Not a directory"):
        Run.create(tmp_path / "runs" / "art", CONFIG)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_said_and_the_old_file_stays(tmp_path):
    run = make_run(tmp_path, summary={"old": 1})
    os.symlink("/dev/full", tmp_path / ".summary.json.tmp")
    with pytest.raises(RunError, match=r"cannot write .*summary\.json: No space left on device"):
        run.write_summary({"new": "x" * 100_000})
    assert run.summary == {"old": 1}


def test_find_is_sorted_and_does_not_look_inside_runs(tmp_path):
    for seed in (2, 0, 1):
        make_run(tmp_path / "art" / "stpnr" / f"seed{seed}", config={**CONFIG, "seed": seed})
    (tmp_path / "art" / "stpnr" / "seed0" / "tensorboard").mkdir()
    assert [run.config["seed"] for run in runs.find(tmp_path)] == [0, 1, 2]
    assert [run.path for run in runs.find(tmp_path / "art" / "stpnr" / "seed1")] == [
        tmp_path / "art" / "stpnr" / "seed1"
    ]


def test_both_layouts_give_the_same_results(tmp_path):
    run = make_run(tmp_path / "runs" / "art" / "stpnr" / "seed3")
    run.write_summary(summary_of(run))
    exported = results.export(run, tmp_path / "results")
    assert exported == tmp_path / "results" / "art" / "stpnr" / "seed3.json"
    (from_run,), (from_file,) = (
        results.load_results(tmp_path / name) for name in ("runs", "results")
    )
    assert (from_run.task, from_run.model, from_run.seed) == ("art", "stpnr", 3)
    assert from_run.summary == from_file.summary
    assert from_run.config == from_file.config
    assert from_file.curve["proficiency"] == from_run.curve["proficiency"] == [10.0, 20.0, 30.0]
    assert set(from_run.curve) == {"step", "proficiency", "power", "loss", "seconds"}


def test_an_unfinished_run_is_marked(tmp_path):
    make_run(tmp_path)
    (result,) = results.load_results(tmp_path)
    assert result.summary["finished"] is False
    assert result.summary["done"] == 3
    assert result.summary["protocol"] == 200
    assert result.summary["proficiency"] == 30.0
    assert result.summary["paper"] == {"proficiency": [98.55, 2.76], "power": [10.9, 3.8]}


def test_an_unfinished_run_says_where_its_figures_come_from(tmp_path):
    run = make_run(tmp_path / "runs")
    run.write_provenance({"versions": {"torch": "2.13.0"}, "commit": "abc"})
    exported = results.export(run, tmp_path / "results")
    (result,) = results.load_results(exported)
    assert result.summary["versions"] == {"torch": "2.13.0"}
    assert result.summary["commit"] == "abc"
    assert Run(results.keep(run, tmp_path / "results")).provenance == run.provenance


def test_a_run_without_rows_has_no_figures(tmp_path):
    make_run(tmp_path, rows=0)
    (result,) = results.load_results(tmp_path)
    assert result.summary["proficiency"] is None
    assert result.summary["done"] == 0


def test_damage_is_reported_and_the_rest_still_read(tmp_path):
    make_run(tmp_path / "good")
    make_run(tmp_path / "bad")
    (tmp_path / "bad" / "metrics.jsonl").write_text("nonsense\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "seed0.json").write_text('{"config": 1}')
    problems = []
    assert [result.path.name for result in results.load_results(tmp_path, problems)] == ["good"]
    assert len(problems) == 2
    assert "line 1: not a row of metrics" in problems[0]
    assert "seed0.json: damaged" in problems[1]
    with pytest.raises(RunError, match="line 1: not a row of metrics"):
        results.load_results(tmp_path)


def test_a_missing_root_is_said(tmp_path):
    with pytest.raises(RunError, match="does not exist"):
        results.load_results(tmp_path / "nowhere")


def test_export_is_thin_and_small(tmp_path):
    run = make_run(tmp_path / "run", rows=0)
    with open(run.path / "metrics.jsonl", "w") as file:
        for step in range(1, 5001):
            file.write(json.dumps({**row(step), "loss": 1 / 3}) + "\n")
    run.write_summary({**summary_of(run), "power_per_step": [1 / 3] * 200})
    path = results.export(run, tmp_path / "results")
    assert path.stat().st_size < 60_000
    curve = json.loads(path.read_text())["curve"]
    assert (curve["step"][0], curve["step"][-1], len(curve["step"])) == (1, 5000, 400)


@pytest.mark.parametrize(("length", "points"), [(0, 5), (3, 5), (5, 5), (6, 5), (1000, 7)])
def test_thin(length, points):
    kept = results.thin(length, points)
    assert len(kept) == min(length, points)
    assert kept == sorted(set(kept))
    if length:
        assert (kept[0], kept[-1]) == (0, length - 1)


def test_paper_figures_take_what_there_is():
    task = experiments.get("familiarity-infinite-r3")
    assert results.paper_figures(task, "stpnr") == {"proficiency": [99.99, 0.02]}
    assert results.paper_figures(task, "gru") is None


def test_runs_in_other_environments_are_exported_below_their_name(tmp_path):
    config = {"task": "gym", "env": "module:CartPole-v1", "model": "lstm", "seed": 4}
    run = Run.create(tmp_path / "run", config)
    path = results.export(run, tmp_path)
    assert path == tmp_path / "gym/module-CartPole-v1/lstm/seed4.json"
