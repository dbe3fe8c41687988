"""A run on disk: reading, writing, locking, exporting, and what damage looks like."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from stpn import experiments, results, runs
from stpn.errors import RunError, RunInUse
from stpn.runs import Run
from stpn.summary import Rows

CONFIG = {"task": "art", "model": "stpnr", "seed": 3, "epochs": 200}


def make_run(path, rows=3, config=CONFIG):
    run = Run.create(path, config)
    for step in range(1, rows + 1):
        run.append(row(step))
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
    return replace(results.result_of(run).summary, proficiency=99.0, finished=True)


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
    unbounded = {"power": float("inf"), "power_per_step": [1.0, float("nan")]}
    run.write_summary(replace(summary_of(run), **unbounded))
    assert run.summary.power is None
    assert run.summary.power_per_step == [1.0, None]


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


def test_rows_that_were_changed_are_not_taken_for_the_checkpoints(tmp_path):
    run = make_run(tmp_path, rows=5)
    kept = Rows.of(run.metrics()[:4])
    assert run.truncate(kept) == kept
    path = run.path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' * 4)
    with pytest.raises(RunError, match="rows were changed"):
        run.truncate(kept)


def test_rows_of_a_resumed_run_are_those_of_one_that_never_stopped():
    assert Rows().plus({"step": 1, "seconds": 2.0}) == Rows().plus({"step": 1, "seconds": 9.0})


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


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said_and_the_old_file_stays(tmp_path, monkeypatch):
    run = make_run(tmp_path)
    run.write_summary(summary_of(run))
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(RunError, match=r"cannot write .*summary\.json: No space left on device"):
        run.write_summary(replace(summary_of(run), proficiency=1.0))
    assert run.summary.proficiency == 99.0
    assert not (tmp_path / ".summary.json.tmp").exists()


def test_a_full_disk_while_locking_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "write", full_disk)
    with pytest.raises(RunError, match=r"cannot write .*lock: No space"), Run(tmp_path).lock():
        pass


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
    assert result.summary.finished is False
    assert result.summary.done == 3
    assert result.summary.paper_length == 200
    assert result.summary.proficiency == 30.0
    assert result.summary.paper == {"proficiency": [98.55, 2.76], "power": [10.9, 3.8]}


def test_an_unfinished_run_says_where_its_figures_come_from(tmp_path):
    run = make_run(tmp_path / "runs")
    run.write_provenance({"versions": {"torch": "2.13.0"}, "commit": "abc"})
    exported = results.export(run, tmp_path / "results")
    (result,) = results.load_results(exported)
    assert result.summary.versions == {"torch": "2.13.0"}
    assert result.summary.commit == "abc"
    assert Run(results.keep(run, tmp_path / "results")).provenance == run.provenance


def test_a_run_without_rows_has_no_figures(tmp_path):
    make_run(tmp_path, rows=0)
    (result,) = results.load_results(tmp_path)
    assert result.summary.proficiency is None
    assert result.summary.done == 0


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
    assert "seed0.json is not the configuration of a run" in problems[1]
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
    run.write_summary(replace(summary_of(run), power_per_step=[1 / 3] * 200))
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


def test_paper_numbers_take_what_there_is():
    task = experiments.get("familiarity-infinite-r3")
    assert results.paper_numbers(task, "stpnr") == {"proficiency": [99.99, 0.02]}
    assert results.paper_numbers(task, "gru") is None


def test_runs_in_other_environments_are_exported_below_their_name(tmp_path):
    config = {"task": "gym", "env": "module:CartPole-v1", "model": "lstm", "seed": 4}
    run = Run.create(tmp_path / "run", config)
    path = results.export(run, tmp_path)
    assert path == tmp_path / "gym/module-CartPole-v1/lstm/seed4.json"


@pytest.mark.parametrize("name", ["task", "model", "env"])
@pytest.mark.parametrize(
    "value", ["../../x", "..", "/abs/x", "a/b", "", ".hidden", "x\0y", "n" * 300]
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name, value):
    inside = tmp_path / "in"
    config = {"task": "gym", "model": "lstm", "seed": 4, "env": "CartPole-v1", name: value}
    run = Run.create(tmp_path / "run", config)
    run.append(row(1))
    if name == "env" and value in ("a/b", "", "x\0y"):  # what is not for a name becomes -
        assert results.export(run, inside).is_relative_to(inside)
        return
    for write in (results.export, results.keep):
        with pytest.raises(RunError, match=r"config\.json: .* cannot be the name of"):
            write(run, inside)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_link_in_a_run_is_not_written_through(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("kept")
    run = make_run(tmp_path / "run", rows=0)
    for name in (".summary.json.tmp", "metrics.jsonl", "lock"):
        (run.path / name).symlink_to(precious)
    run.write_summary(summary_of(Run(make_run(tmp_path / "other").path)))
    with pytest.raises(RunError, match="cannot write"):
        run.append(row(1))
    with pytest.raises(RunError, match="cannot lock"), run.lock():
        pass
    assert precious.read_text() == "kept"


def test_a_changed_digit_is_noticed(tmp_path):
    run = make_run(tmp_path / "run")
    run.write_summary(replace(summary_of(run), proficiency=91.0))
    exported = results.export(run, tmp_path / "results")
    for path in (run.path / "summary.json", exported):
        path.write_text(path.read_text().replace("91.0", "97.0"))
        with pytest.raises(RunError, match="its checksum does not match"):
            results.load_results(path if path == exported else run.path)


def test_a_finished_run_with_other_rows_is_noticed(tmp_path):
    run = make_run(tmp_path)
    rows = Rows.of(run.metrics())
    run.write_summary(replace(summary_of(run), rows=rows.count, rows_checksum=rows.checksum))
    assert results.load_results(tmp_path)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b"20.0", b"80.0"))
    with pytest.raises(RunError, match="is not the one that its summary was written beside"):
        results.load_results(tmp_path)


def test_the_summary_of_another_run_is_not_believed(tmp_path):
    run = make_run(tmp_path)
    run.write_summary(replace(summary_of(run), model="lstm"))
    with pytest.raises(RunError, match=r"its model is 'lstm', not 'stpnr'; delete it, and `stpn"):
        results.load_results(tmp_path)


def test_a_kept_run_that_went_on_counts_before_its_old_export(tmp_path):
    run = make_run(tmp_path / "run")
    exported = results.export(run, tmp_path / "results")
    kept = Run(results.keep(run, tmp_path / "results"))
    assert [result.path for result in results.load_results(tmp_path / "results")] == [exported]
    kept.append(row(4))
    (result,) = results.load_results(tmp_path / "results")
    assert (result.path, result.summary.done) == (kept.path, 4)


def test_how_far_a_run_is_the_checkpoint_knows(tmp_path):
    run = make_run(tmp_path, rows=0)
    run.checkpoint.write_bytes(safetensors({"done": "7", "tree": "{}"}))
    (result,) = results.load_results(tmp_path)
    assert (result.summary.done, result.asked) == (7, 200)


def safetensors(metadata):
    header = json.dumps({"__metadata__": metadata}).encode()
    return len(header).to_bytes(8, "little") + header
