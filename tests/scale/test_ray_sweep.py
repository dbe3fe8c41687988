"""Sweeps on Ray: same directories, same numbers, whatever dies on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import torch

from stpn import experiments
from stpn.runs import Run
from stpn.scale.cluster import ClusterError
from stpn.scale.sweep import RayExecutor
from stpn.sweep import plan
from stpn.training import checkpoint, session

TINY = {"epochs": 1, "train_size": 60, "validation_size": 20, "test_size": 20}
LONGER = {"epochs": 5, "train_size": 5_000, "validation_size": 100, "test_size": 100}
UPDATE = 1 / 40  # of an epoch


def config(seed=0, **settings):
    settings = {**TINY, "threads": 1, "checkpoint_seconds": 0.0, **settings}
    return experiments.default_config("art", "stpnr", seed=seed, **settings)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def content(path):
    """All that a run says, but for the time it took."""
    run = Run.open(path)
    state = checkpoint.read(run.checkpoint)
    rows = run.metrics()
    summary = run.summary.to_dict()
    for part in (state, summary, *rows):
        del part["seconds"]
    return {"config": run.config, "state": state, "rows": rows, "summary": summary}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The longer run, trained in this process without an interruption."""
    root = tmp_path_factory.mktemp("undisturbed")
    longer = config(**LONGER)
    session.ensure(longer, root)
    return content(root / longer.directory)


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["auto", "fetch"])
def test_a_killed_worker_costs_a_checkpoint_and_changes_no_bit(ray, tmp_path, undisturbed, storage):
    events = []

    def on_event(event):
        events.append(event)
        if event.kind == "row" and event.content["step"] == 1 and not lost(events):
            os.kill(started(events)[-1]["process"], signal.SIGKILL)

    (result,) = RayExecutor(ray, storage=storage).execute(
        plan([config(**LONGER)], tmp_path), on_event
    )
    assert (result.status, result.message) == ("finished", "")
    assert len(lost(events)) == 1
    first, second = started(events)
    assert first["progress"] == 0
    assert second["progress"] >= 1 - UPDATE  # it saves after every update: one is lost at most
    assert first["process"] != second["process"]
    found = content(result.job.path)
    for part, value in undisturbed.items():
        assert same(found[part], value), part
    assert not Run(result.job.path).in_use
    assert [path.name for path in tmp_path.iterdir()] == ["art"]


@pytest.mark.slow
def test_a_node_that_dies_hands_its_run_to_another(ray, cluster, tmp_path, undisturbed):
    nodes = [cluster.add_node(num_cpus=3) for _ in range(2)]
    cluster.wait_for_nodes()
    removed, events = [], []

    def kill_the_node(event):
        events.append(event)
        if event.kind == "row" and event.content["step"] == 1 and not removed:
            (victim,) = (node for node in nodes if node.node_id == started(events)[0]["node"])
            removed.append(victim)
            # a machine dies at once; here its worker might finish the run while Ray dies
            os.kill(started(events)[0]["process"], signal.SIGSTOP)
            cluster.remove_node(victim, allow_graceful=False)
            with suppress(ProcessLookupError):
                os.kill(started(events)[0]["process"], signal.SIGKILL)

    executor = RayExecutor(ray, cpus=3)
    (result,) = executor.execute(plan([config(**LONGER)], tmp_path), kill_the_node)
    for node in nodes:
        if node not in removed:
            cluster.remove_node(node)
    assert result.status == "finished", result.message
    assert len(removed) == len(lost(events)) == 1
    found = content(result.job.path)
    for part, value in undisturbed.items():
        assert same(found[part], value), part


@pytest.mark.slow
def test_ctrl_c_saves_and_a_lost_driver_loses_nothing_that_was_saved(
    ray, cluster, tmp_path, undisturbed
):
    """Three drivers, one after another: killed, interrupted, left in peace."""
    flags = [word for key, value in LONGER.items() for word in (flag(key), str(value))]
    command = [sys.executable, "-m", "stpn", "sweep", "art", "--models", "stpnr", "--seeds", "1"]
    command += ["--out", str(tmp_path), "--json", "--ray", "--address", cluster.address]
    command += [*flags, "--checkpoint-seconds", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        try:
            process = next(e["process"] for e in lines(driver) if e["event"] == "started")
            next(event for event in lines(driver) if event["event"] == "row")
        finally:
            driver.kill()
    wait_until(lambda: not exists(process))  # a driver's death is the death of its workers

    events = []

    def interrupt(event):
        events.append(event)
        if event.kind == "started":
            os.kill(os.getpid(), signal.SIGINT)

    jobs = plan([config(**LONGER), config(seed=1, **LONGER)], tmp_path)
    assert [job.state for job in jobs] == ["stopped", "new"]
    first, second = RayExecutor(ray, jobs=1).execute(jobs, interrupt)
    assert (first.status, first.message) == ("stopped", "stopped and saved")
    assert (second.status, second.message) == ("stopped", "not started")
    assert started(events)[0]["progress"] >= 1 - UPDATE

    (result,) = RayExecutor(ray).execute(plan([config(**LONGER)], tmp_path), lambda event: None)
    assert result.status == "finished"
    found = content(result.job.path)
    for part, value in undisturbed.items():
        assert same(found[part], value), part


@pytest.mark.slow
def test_a_finished_run_is_skipped_lengthened_and_a_broken_one_named(ray, tmp_path):
    """Fetched back, so that all files travel both ways."""
    broken = Run.create(tmp_path / config(seed=1).directory, config(seed=1).to_dict())
    broken.checkpoint.write_bytes(b"not a checkpoint")
    (result,) = RayExecutor(ray, storage="fetch").execute(
        plan([config()], tmp_path), lambda event: None
    )
    assert result.status == "finished"
    assert Run.open(result.job.path).summary.done == 1

    configs = [config(epochs=2), config(seed=1)]
    longer, failed = RayExecutor(ray, storage="fetch").execute(
        plan(configs, tmp_path), lambda event: None
    )
    assert (longer.status, failed.status) == ("finished", "failed")
    assert "damaged or not a safetensors file" in failed.message
    assert broken.checkpoint.read_bytes() == b"not a checkpoint"
    run = Run.open(longer.job.path)
    assert (run.config["epochs"], run.summary.done, len(run.metrics())) == (2, 2, 2)

    (skipped,) = RayExecutor(ray).execute(plan([config(epochs=2)], tmp_path), pytest.fail)
    assert skipped.status == "skipped"


def test_too_few_resources_are_an_error_at_once(ray, tmp_path):
    jobs = plan([config()], tmp_path)
    with pytest.raises(ClusterError, match="needs 99 CPUs; the cluster has 2 CPUs on 1 node"):
        RayExecutor(ray, cpus=99).execute(jobs, pytest.fail)
    with pytest.raises(ClusterError, match=r"needs 1 CPU and 1\.07e\+09 GiB"):
        RayExecutor(ray, memory=2**60).execute(jobs, pytest.fail)
    assert list(tmp_path.iterdir()) == []


def started(events):
    return [event.content for event in events if event.kind == "started"]


def lost(events):
    return [event for event in events if event.kind == "lost"]


def flag(name):
    return f"--{name.replace('_', '-')}"


def lines(process):
    return map(json.loads, process.stdout)


def exists(process):
    return os.path.exists(f"/proc/{process}")


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
