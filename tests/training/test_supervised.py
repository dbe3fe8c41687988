"""Supervised trainers: what a batch, a loss, a row and a final evaluation are."""

import math

import pytest
import torch
from torch.nn import functional

from stpn import cores, experiments
from stpn.runs import Run
from stpn.tasks import art
from stpn.tasks.art import training
from stpn.tasks.art.training import ArtTrainer
from stpn.tasks.familiarity.training import FamiliarityTrainer
from stpn.training import session
from stpn.training.loop import Reporter, Stop

TINY_ART = {"epochs": 2, "train_size": 300, "validation_size": 70, "test_size": 90}
TINY_FAMILIARITY = {"iterations": 4, "length": 60, "log_every": 2, "eval_sequences": 3}
ALL_MODELS = sorted(cores.names())


def art_trainer(model="stpnr", **settings):
    torch.manual_seed(0)
    return ArtTrainer(experiments.default_config("art", model, **{**TINY_ART, **settings}))


def familiarity_trainer(task="familiarity-infinite-r3", model="stpnr", **settings):
    torch.manual_seed(0)
    config = experiments.default_config(task, model, **{**TINY_FAMILIARITY, **settings})
    return FamiliarityTrainer(config)


def run_to_end(trainer):
    rows = []
    while trainer.done < trainer.total:
        row = trainer.advance()
        if row is not None:
            rows.append(row)
    return rows


class TestArt:
    def test_an_epoch_shows_every_sequence_once_the_last_batch_is_partial(self):
        trainer = art_trainer(train_size=300, batch_size=128)
        seen, sizes = [], []
        for _ in range(3):
            x, target = trainer.batch()
            sizes.append(len(x))
            seen.append(torch.cat([x.argmax(dim=2), target[:, None]], dim=1))
            trainer.updates += 1
        assert sizes == [128, 128, 44]
        expected = torch.cat(
            [trainer.data.train.symbols.long(), trainer.data.train.answers[:, None]], dim=1
        )
        assert torch.equal(torch.cat(seen).unique(dim=0), expected.unique(dim=0))

    def test_each_epoch_has_an_order_of_its_own(self):
        trainer = art_trainer()
        first, _ = trainer.batch()
        trainer.done, trainer.updates = 1, 3
        second, _ = trainer.batch()
        assert not torch.equal(first, second)
        assert torch.equal(art_trainer().batch()[0], first)
        assert not torch.equal(art_trainer(seed=1).batch()[0], first)

    def test_loss_is_the_cross_entropy_of_the_last_step(self):
        trainer = art_trainer()
        x, target = trainer.batch()
        y, _ = trainer.model.core(x)
        expected = functional.cross_entropy(trainer.model.readout(y)[:, -1], target)
        before = [parameter.clone() for parameter in trainer.model.parameters()]
        trainer.advance()
        assert trainer.loss == pytest.approx(expected.item(), rel=1e-6)
        moved = [
            not torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True)
        ]
        assert all(moved)

    def test_rows_hold_the_mean_loss_of_their_epoch(self):
        trainer = art_trainer()
        losses = []
        while True:
            row = trainer.advance()
            losses.append(trainer.loss)
            if row is not None:
                break
        assert row["step"] == trainer.done == 1
        assert row["loss"] == pytest.approx(sum(losses) / len(losses))
        assert trainer.samples == 300

    def test_accuracy_counts_every_sample(self, monkeypatch):
        """In batches of any size, the last partial one included, with the weight of its size."""
        trainer = art_trainer(epochs=3, lr=0.02)
        run_to_end(trainer)
        test = trainer.data.test
        with torch.no_grad():
            answers = trainer.model(art.one_hot(test.symbols)).argmax(dim=1)
        expected = 100 * (answers == test.answers).double().mean().item()
        assert 0 < expected < 100
        for size in (7, 64, 90, 2000):
            monkeypatch.setattr(training, "EVALUATION_BATCH", size)
            figures = trainer.evaluate()
            assert figures.proficiency == pytest.approx(expected)
            assert len(figures.power_per_step) == 9
            mean = sum(figures.power_per_step) / 9
            assert figures.power == pytest.approx(mean, rel=1e-4)

    def test_measuring_leaves_no_trace(self):
        measured, plain = art_trainer(), art_trainer()
        for _ in range(4):
            measured.evaluate()
            measured.advance()
            plain.advance()
        assert measured.loss == plain.loss

    def test_it_learns(self):
        """Digits are ten of 37 classes: the first thing a network learns is to guess digits."""
        trainer = art_trainer(train_size=2000, epochs=4, lr=0.01)
        rows = run_to_end(trainer)
        assert rows[0]["loss"] > rows[-1]["loss"]
        assert rows[-1]["loss"] < math.log(37) - 1


class TestFamiliarity:
    def test_loss_is_the_mean_binary_cross_entropy(self):
        trainer = familiarity_trainer()
        x, labels = trainer.batch()
        assert x.shape == (1, 60, 100)
        assert labels.shape == (1, 60)
        y, _ = trainer.model.core(x)
        outputs = torch.sigmoid(trainer.model.readout(y)).squeeze(-1)
        expected = functional.binary_cross_entropy(outputs, labels)
        trainer.advance()
        assert trainer.loss == pytest.approx(expected.item(), rel=1e-4)

    def test_infinite_draws_anew_dataset_does_not(self):
        infinite = familiarity_trainer("familiarity-infinite-r3")
        dataset = familiarity_trainer("familiarity-dataset-r3")
        drawn = {}
        for trainer in (infinite, dataset):
            first, _ = trainer.batch()
            trainer.advance()
            second, _ = trainer.batch()
            drawn[trainer] = (first, second)
        assert not torch.equal(*drawn[infinite])
        assert torch.equal(*drawn[dataset])
        validation = dataset._validation(0)[0]
        assert not torch.equal(validation, drawn[dataset][0])
        assert torch.equal(validation, dataset._validation(10)[0])

    def test_repetitions_lie_r_steps_apart(self):
        for distance in (3, 6):
            trainer = familiarity_trainer(f"familiarity-infinite-r{distance}", length=400)
            x, labels = (part[0] for part in trainer.batch())
            steps = labels.nonzero().squeeze(1)
            assert torch.equal(x[steps], x[steps - distance])

    def test_rows_come_every_k_iterations_and_at_the_end(self):
        trainer = familiarity_trainer(iterations=5, log_every=2)
        assert [row["step"] for row in run_to_end(trainer)] == [2, 4, 5]

    def test_final_accuracy_is_the_share_of_rounded_outputs_that_are_right(self):
        trainer = familiarity_trainer()
        run_to_end(trainer)
        correct = []
        for i in range(3):
            x, labels = trainer._draw("test", i)
            with torch.no_grad():
                output = torch.sigmoid(trainer.model(x)).squeeze(-1)
            correct.append((output.round() == labels).double())
        expected = 100 * torch.cat(correct).mean().item()
        assert trainer.evaluate().proficiency == pytest.approx(expected)

    def test_long_power_curves_are_averaged_over_stretches(self):
        trainer = familiarity_trainer(length=450)
        figures = trainer.evaluate()
        assert figures.extras == {"power_stretch": 3}
        assert len(figures.power_per_step) == 150
        assert sum(figures.power_per_step) / 150 == pytest.approx(figures.power, rel=1e-4)

    @pytest.mark.parametrize("model", ["stpnr", "stpnf", "hebbff"])
    def test_weights_start_as_hebbff_prescribes(self, model):
        trainer = familiarity_trainer(model=model, hidden_size=400)
        core, readout = trainer.model.core, trainer.model.readout
        fan_in = core.weight_l0.shape[1]
        assert core.weight_l0.std().item() == pytest.approx(fan_in**-0.5, rel=0.03)
        assert core.bias_l0.std().item() == pytest.approx(1, rel=0.15)
        assert readout.weight.std().item() == pytest.approx(400**-0.5, rel=0.15)
        if model == "hebbff":
            (lambda_, eta), *_ = core.plasticity()
            assert lambda_.item() == pytest.approx(0.99)
            assert eta.item() == pytest.approx(-5 / 100)
        else:
            assert 0 <= core.lambda_l0.min() < 0.01
            assert 0.99 < core.lambda_l0.max() <= 1


@pytest.mark.parametrize("model", ALL_MODELS)
@pytest.mark.parametrize("task", ["art", "familiarity-infinite-r3"])
def test_every_model_runs(tmp_path, task, model):
    size = {"train_size": 40, "validation_size": 20, "test_size": 20, "epochs": 1}
    settings = size if task == "art" else {**TINY_FAMILIARITY, "iterations": 2, "length": 20}
    config = experiments.default_config(task, model, threads=1, **settings)
    summary = session.start(config, tmp_path).summary
    assert 0 <= summary.proficiency <= 100
    assert summary.power > 0
    hidden = Run.open(tmp_path / config.directory).config["hidden_size"]
    assert hidden == (experiments.get(task).hidden_sizes.get(model) or hidden)
    assert hidden >= 1


@pytest.mark.parametrize("model", ["stpnr", "lstm", "fastweights"])
def test_a_stop_in_the_middle_of_an_epoch_changes_nothing(tmp_path, model):
    config = experiments.default_config("art", model, threads=1, batch_size=64, **TINY_ART)
    whole = session.start(config, tmp_path / "whole").run
    stop = Stop()

    class StopAtOnce(Reporter):
        def started(self, run, trainer):
            update = trainer.update
            trainer.update = lambda: (stop.request(), update())[1]

    cut = session.start(config, tmp_path / "cut", stop=stop, reporter=StopAtOnce()).run
    for _ in range(4):
        stop = Stop()
        assert not session.resume(cut.path, stop=stop, reporter=StopAtOnce()).finished
    session.resume(cut.path)
    for a, b in zip(whole.metrics(), cut.metrics(), strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}
    assert whole.summary.proficiency == cut.summary.proficiency
    assert whole.summary.power_per_step == cut.summary.power_per_step
