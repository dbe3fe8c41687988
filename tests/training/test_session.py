"""Sessions: start, stop, resume, fail. Whatever happens, the run ends as if nothing had."""

import errno
import gc
import os
import signal

import pytest
import torch
from toy_trainer import TOY, TOY_EXPERIMENT, ToyTrainer

from stpn import experiments
from stpn.errors import CheckpointError, ConfigError, NonFinite, RunError, RunInUse
from stpn.runs import Run
from stpn.tasks import registry
from stpn.training import checkpoint, session
from stpn.training.loop import Reporter, Stop


@pytest.fixture(autouse=True)
def _toy(monkeypatch):
    registry.names()  # the others are there
    monkeypatch.setitem(registry._tasks, "toy", TOY)
    monkeypatch.setitem(experiments.PAPER, "toy", TOY_EXPERIMENT)


def config(**settings):
    settings = {"checkpoint_seconds": 0, "threads": 1, **settings}
    return experiments.default_config("toy", **settings)


class StopAt(Reporter):
    """Ask to stop once `updates` more updates have been done."""

    def __init__(self, stop, updates):
        self.stop, self.left = stop, updates

    def started(self, run, trainer):
        original = trainer.update

        def update():
            due = original()
            self.left -= 1
            if self.left == 0:
                self.stop.request()
            return due

        trainer.update = update


def stop_after(updates):
    stop = Stop()
    return {"stop": stop, "reporter": StopAt(stop, updates)}


def rows(run):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in run.metrics()]


def tensors(run):
    state = checkpoint.read(run.checkpoint)
    state.pop("seconds")
    flat = {}

    def walk(value, name):
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{name}/{key}")
        elif isinstance(value, list | tuple):
            for key, item in enumerate(value):
                walk(item, f"{name}/{key}")
        else:
            flat[name] = value

    walk(state, "")
    return flat


def assert_same_run(a, b):
    ours, theirs = tensors(a), tensors(b)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        same = torch.equal(value, theirs[name]) if isinstance(value, torch.Tensor) else None
        assert same or value == theirs[name], name
    assert rows(a) == rows(b)
    assert a.summary.proficiency == b.summary.proficiency


@pytest.fixture
def whole(tmp_path):
    """A run that was never stopped."""
    outcome = session.start(config(), tmp_path / "whole")
    assert outcome.finished
    return outcome.run


def test_a_run_leaves_its_files(whole):
    assert whole.status == "finished"
    assert [row["step"] for row in whole.metrics()] == [2, 4, 6, 8, 10]
    assert whole.config["threads"] == 1
    summary = whole.summary
    assert (summary.done, summary.paper_length, summary.finished) == (10, 10, True)
    assert torch.__version__.startswith(summary.versions["torch"])
    assert summary.machine["threads"] == 1
    assert summary.parameters == 5
    assert summary.power_per_step == [1.0]


@pytest.mark.parametrize("optimizer", ["Adam", "SGD", "RMSprop", "Rprop"])
def test_stopped_after_every_update_it_ends_bit_identical(tmp_path, optimizer):
    whole = session.start(config(optimizer=optimizer), tmp_path / "whole").run
    outcome = session.start(config(optimizer=optimizer), tmp_path / "cut", **stop_after(1))
    for done in range(1, 10):
        assert not outcome.finished
        assert outcome.run.status == "stopped"
        assert checkpoint.read(outcome.run.checkpoint)["trainer"]["done"] == done
        outcome = session.resume(outcome.run.path, **stop_after(1))
    assert not outcome.finished  # the last row and the final figures are left to do
    assert session.resume(outcome.run.path).finished
    assert_same_run(whole, outcome.run)


def test_rows_after_the_checkpoint_are_made_again(tmp_path, whole):
    cut = session.start(config(), tmp_path / "cut", **stop_after(3)).run
    cut.append({"step": 4, "proficiency": 0.0, "power": 0.0, "loss": 0.0, "seconds": 0.0})
    with open(cut.path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 5, "pro')
    session.resume(cut.path)
    assert_same_run(whole, cut)


def test_a_crash_between_checkpoints_costs_nothing_but_time(tmp_path, whole, monkeypatch):
    crashing = config(crash_at=8, checkpoint_seconds=1000)
    with pytest.raises(RuntimeError, match="the environment went away"):
        session.start(crashing, tmp_path / "cut")
    run = Run.open(tmp_path / "cut" / crashing.directory)
    assert checkpoint.read(run.checkpoint)["trainer"]["done"] == 0
    assert len(run.metrics()) == 3
    run.rewrite_config({**run.config, "crash_at": None})
    state = checkpoint.read(run.checkpoint)
    state["config"]["crash_at"] = None
    checkpoint.write(run.checkpoint, state)
    session.resume(run.path)
    assert rows(run) == rows(whole)


class Killed(BaseException):
    """Stands for kill -9: nothing that handles ordinary errors may see it."""


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_killed_at_any_write_it_ends_bit_identical(tmp_path, whole, monkeypatch, call):
    """Die at the n-th time that something reaches the disk, for every n."""
    original = getattr(os, call)
    for fatal in range(1, 1000):
        calls = 0

        def die(*arguments, fatal=fatal):
            nonlocal calls
            calls += 1
            if calls == fatal:
                raise Killed
            return original(*arguments)

        root = tmp_path / f"{call}{fatal}"
        with monkeypatch.context() as patch:
            patch.setattr(os, call, die)
            try:
                session.start(config(), root)
            except Killed:
                pass
            else:
                break
        assert_same_run(whole, session.ensure(config(), root).run)
    assert fatal > 10


def test_a_run_killed_before_its_first_checkpoint_starts_over(tmp_path, whole):
    run = Run.create(tmp_path / "cut" / "run", whole.config)
    assert run.status == "new"
    session.resume(run.path)
    assert_same_run(whole, run)


def test_start_never_touches_an_existing_run(tmp_path, whole):
    before = whole.checkpoint.read_bytes()
    with pytest.raises(
        RunError, match=r"already holds a run, nothing was changed \(it is finished"
    ):
        session.start(config(), tmp_path / "whole")
    assert whole.checkpoint.read_bytes() == before
    cut = session.start(config(), tmp_path / "cut", **stop_after(3)).run
    with pytest.raises(RunError, match=f"it can go on: `stpn resume {cut.path}`"):
        session.start(config(), tmp_path / "cut")


def test_resuming_a_finished_run_changes_nothing(whole):
    before = whole.checkpoint.stat().st_mtime_ns
    outcome = session.resume(whole.path)
    assert outcome.finished
    assert outcome.summary == whole.summary
    assert whole.checkpoint.stat().st_mtime_ns == before


def test_a_run_can_be_lengthened(tmp_path, whole):
    short = session.start(config(iterations=4), tmp_path / "short").run
    assert short.summary.done == 4
    session.resume(short.path, total=10)
    assert_same_run(whole, short)
    assert short.config["iterations"] == 10
    with pytest.raises(ConfigError, match="gone further than 3 iterations"):
        session.resume(short.path, total=3)
    assert short.config["iterations"] == 10
    assert short.summary.done == 10


def test_a_trained_run_without_its_checkpoint_is_not_trained_anew(tmp_path, whole):
    whole.checkpoint.unlink()
    before = {path: path.read_bytes() for path in whole.path.glob("*.json*")}
    with pytest.raises(CheckpointError, match="its checkpoint is missing"):
        session.resume(whole.path, total=20)
    assert {path: path.read_bytes() for path in whole.path.glob("*.json*")} == before
    begun = session.start(config(), tmp_path / "begun", **stop_after(5)).run
    begun.checkpoint.unlink()
    with pytest.raises(CheckpointError, match="remove the directory"):
        session.resume(begun.path)


def test_ensure_starts_resumes_lengthens_and_skips(tmp_path, whole):
    def work(**settings):
        return session.ensure(config(**settings), tmp_path / "runs")

    outcome = session.ensure(config(iterations=6), tmp_path / "runs", **stop_after(3))
    assert not outcome.finished
    assert work(iterations=6).summary.done == 6
    assert work().summary.done == 10
    assert work(iterations=6).summary.done == 10
    assert_same_run(whole, outcome.run)
    with pytest.raises(ConfigError, match=r"a run with other settings: its lr is 0\.001, not 0\.5"):
        work(lr=0.5)


def test_a_run_in_use_is_left_alone(tmp_path):
    cut = session.start(config(), tmp_path, **stop_after(3)).run
    with cut.lock():
        with pytest.raises(RunInUse, match=f"is in use by process {os.getpid()}"):
            session.resume(cut.path)
        with pytest.raises(RunError, match="a process trains there right now"):
            session.start(config(), tmp_path)


class TestSignals:
    def test_ctrl_c_finishes_the_update_and_saves(self, tmp_path):
        stop = Stop()
        outcome = session.start(config(signal_at=4), tmp_path, stop=stop)
        assert not outcome.finished
        assert stop.signal == signal.SIGINT
        assert checkpoint.read(outcome.run.checkpoint)["trainer"]["done"] == 4

    def test_a_second_ctrl_c_interrupts_at_once(self, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            session.start(config(signal_at=4, signals=2), tmp_path)
        run = Run.open(tmp_path / config().directory)
        assert checkpoint.read(run.checkpoint)["trainer"]["done"] == 3

    def test_ctrl_c_while_evaluating_leaves_a_run_to_be_resumed(self, tmp_path):
        outcome = session.start(config(signal_in_evaluation=True), tmp_path)
        assert not outcome.finished
        assert outcome.run.status == "stopped"
        assert checkpoint.read(outcome.run.checkpoint)["trainer"]["done"] == 10

    def test_a_signal_while_measuring_breaks_it_off_and_loses_nothing(self, tmp_path, whole):
        stop = Stop()
        hit = config(signal_in_measurement=4)
        outcome = session.start(hit, tmp_path, stop=stop)
        assert not outcome.finished
        assert stop.signal == signal.SIGTERM
        assert [row["step"] for row in outcome.run.metrics()] == [2]
        outcome.run.rewrite_config(config().to_dict())
        saved = checkpoint.read(outcome.run.checkpoint)
        checkpoint.write(outcome.run.checkpoint, {**saved, "config": config().to_dict()})
        assert session.resume(outcome.run.path).finished
        assert_same_run(whole, outcome.run)

    def test_handlers_are_put_back(self, tmp_path):
        before = signal.getsignal(signal.SIGINT)
        session.start(config(), tmp_path)
        assert signal.getsignal(signal.SIGINT) is before


class TestNonFinite:
    def test_a_bad_loss_stops_with_step_and_the_last_good_checkpoint(self, tmp_path):
        bad = config(poison_at=6)
        with pytest.raises(NonFinite) as caught:
            session.start(bad, tmp_path)
        run = Run.open(tmp_path / bad.directory)
        message = str(caught.value)
        assert (
            "the loss became nan at update 6: all parameters are finite; the largest is 1."
            in message
        )
        assert f"The checkpoint of iteration 5 is kept in {run.path}" in message
        state = checkpoint.read(run.checkpoint)["trainer"]
        assert state["done"] == 5
        assert all(tensor.isfinite().all() for tensor in state["model"].values())

    def test_a_broken_parameter_is_named_and_never_saved(self, tmp_path):
        bad = config(break_at=6)
        with pytest.raises(NonFinite) as caught:
            session.start(bad, tmp_path)
        run = Run.open(tmp_path / bad.directory)
        assert "1.weight has 1 of 4 entries that are NaN or infinite" in str(caught.value)
        assert checkpoint.read(run.checkpoint)["trainer"]["done"] == 5

    def test_between_two_checkpoints_the_next_loss_finds_it(self, tmp_path):
        with pytest.raises(
            NonFinite, match=r"the loss became nan at update 7: 1\.weight has 1 of 4"
        ):
            session.start(config(break_at=6, checkpoint_seconds=1000), tmp_path)


def test_a_stopped_run_says_what_trained_it(tmp_path):
    run = session.start(config(), tmp_path, **stop_after(3)).run
    assert run.summary is None
    assert torch.__version__.startswith(run.provenance["versions"]["torch"])
    assert run.provenance.keys() == {"versions", "machine", "commit"}


class TestDamage:
    @pytest.fixture
    def cut(self, tmp_path):
        return session.start(config(), tmp_path / "cut", **stop_after(3)).run

    def files(self, run):
        return {p.name: p.read_bytes() for p in run.path.iterdir() if p.name != "lock"}

    def assert_refused(self, run, error, match):
        before = self.files(run)
        with pytest.raises(error, match=match):
            session.resume(run.path)
        assert self.files(run) == before

    def test_damaged(self, cut):
        cut.checkpoint.write_bytes(cut.checkpoint.read_bytes()[:-10])
        self.assert_refused(cut, CheckpointError, "is damaged")

    def test_of_another_run(self, cut, tmp_path):
        other = session.start(config(seed=5), tmp_path / "other", **stop_after(3)).run
        cut.checkpoint.write_bytes(other.checkpoint.read_bytes())
        self.assert_refused(cut, CheckpointError, "belongs to another run: its seed is 5, not 0")

    def test_of_another_shape(self, cut):
        state = checkpoint.read(cut.checkpoint)
        state["trainer"]["model"]["1.weight"] = torch.zeros(1, 7)
        checkpoint.write(cut.checkpoint, state)
        self.assert_refused(cut, CheckpointError, r"'1.weight' is \(1, 7\) there and \(1, 4\) here")

    def test_without_a_part(self, cut):
        state = checkpoint.read(cut.checkpoint)
        del state["trainer"]["done"]
        checkpoint.write(cut.checkpoint, state)
        self.assert_refused(cut, CheckpointError, "does not fit ToyTrainer: KeyError")

    def test_lost_rows(self, cut):
        (cut.path / "metrics.jsonl").write_bytes(b"")
        self.assert_refused(cut, RunError, "rows were lost")

    def test_changed_rows(self, cut):
        path = cut.path / "metrics.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"power": 1.0', b'"power": 2.0'))
        self.assert_refused(cut, RunError, "rows were changed")

    def test_a_state_that_nobody_can_go_on_from(self, cut, monkeypatch):
        monkeypatch.setattr(ToyTrainer, "update", lambda self: 1 // 0)
        self.assert_refused(cut, CheckpointError, "does not fit ToyTrainer: ZeroDivisionError")

    def test_rows_of_an_older_checkpoint_are_counted(self, cut):
        state = checkpoint.read(cut.checkpoint)
        del state["rows_checksum"]
        checkpoint.write(cut.checkpoint, state)
        assert session.resume(cut.path).finished

    def test_an_edited_config(self, cut):
        cut.rewrite_config({**cut.config, "lr": 0.5})
        self.assert_refused(cut, CheckpointError, r"its lr is 0\.001, not 0\.5")

    def test_an_unknown_setting(self, cut):
        cut.rewrite_config({**cut.config, "colour": "red"})
        self.assert_refused(cut, ConfigError, "unknown setting of toy 'colour'")

    def test_a_full_disk_keeps_the_checkpoint(self, cut, monkeypatch):
        before = cut.checkpoint.read_bytes()
        replace = os.replace

        def full(source, target):
            if target == cut.checkpoint:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            replace(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            with pytest.raises(RunError) as caught:
                session.resume(cut.path)
        assert "checkpoint.safetensors: No space left on device" in str(caught.value)
        assert f"The checkpoint of iteration 3 is kept in {cut.path}" in str(caught.value)
        assert cut.checkpoint.read_bytes() == before
        session.resume(cut.path)
        assert cut.status == "finished"


class TestManners:
    def test_global_generator_and_threads_are_as_before(self, tmp_path):
        before, threads = torch.get_rng_state(), torch.get_num_threads()
        session.start(config(threads=2), tmp_path)
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.get_num_threads() == threads

    def test_impossible_settings_are_refused_before_anything_is_made(self, tmp_path):
        with pytest.raises(ConfigError, match="unknown optimizer 'Adm'"):
            session.start(config(optimizer="Adm"), tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_the_trainer_is_closed_whatever_happens(self, tmp_path, monkeypatch):
        closed = []
        monkeypatch.setattr(ToyTrainer, "close", lambda trainer: closed.append(trainer))
        session.start(config(), tmp_path)
        with pytest.raises(NonFinite):
            session.start(config(seed=1, poison_at=1), tmp_path)
        assert len(closed) == 2

    def test_reporters_hear_everything_in_order(self, tmp_path):
        heard = []

        class Ear(Reporter):
            def __getattribute__(self, name):
                if name in ("started", "measured", "evaluating", "ended"):
                    heard.append(name)
                return super().__getattribute__(name)

        session.start(config(), tmp_path, reporter=Ear())
        assert heard == ["started", *["measured"] * 5, "evaluating", "ended"]

    def test_evaluate_agrees_with_the_summary(self, whole):
        with session.restored(whole.path) as trainer:
            assert trainer.evaluate().proficiency == whole.summary.proficiency
            assert trainer.done == 10


def test_old_objects_are_left_out_of_garbage_collection_while_training(only_new_garbage):
    with only_new_garbage():
        assert gc.get_freeze_count() > 10_000
    assert gc.get_freeze_count() == 0
