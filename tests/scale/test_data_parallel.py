"""Several workers on one model: the loss curve of one worker with the whole batch."""

from __future__ import annotations

import pytest
import torch

from stpn import experiments
from stpn.cli import main
from stpn.errors import ConfigError
from stpn.scale.cluster import ClusterError
from stpn.scale.data_parallel import Group, train
from stpn.tasks.art.training import ArtTrainer
from stpn.training import checkpoint, session

# 1001 sequences in batches of 100: the last one has a single sequence, for one worker only
SMALL = {"epochs": 3, "train_size": 1001, "validation_size": 200, "test_size": 100}


def config(**settings):
    settings = {**SMALL, "batch_size": 100, "lr": 0.01, "threads": 1, **settings}
    return experiments.default_config("art", "stpnr", **settings)


def weights(run):
    return checkpoint.read(run.checkpoint)["trainer"]["model"]


@pytest.mark.slow
def test_two_workers_learn_as_one_with_the_doubled_batch(ray, tmp_path):
    """50 sequences each against 100; then both are taken further, from the same checkpoint."""
    two = train(config(), tmp_path / "two", workers=2)
    one = session.start(config(), tmp_path / "one")
    longer = config(epochs=4)
    assert two.finished
    for _ in range(2):
        rows, expected = two.run.metrics(), one.run.metrics()
        assert [row["step"] for row in rows] == [row["step"] for row in expected]
        for name in ("loss", "power"):
            curve = torch.tensor([row[name] for row in rows])
            torch.testing.assert_close(
                curve, torch.tensor([row[name] for row in expected]), rtol=1e-3, atol=1e-4
            )
        theirs = weights(one.run)
        for name, value in weights(two.run).items():
            torch.testing.assert_close(value, theirs[name], rtol=2e-3, atol=2e-4)
        assert abs(two.summary.proficiency - one.summary.proficiency) <= 2
        two = train(longer, tmp_path / "two", workers=2)
        one = session.ensure(longer, tmp_path / "one")
    assert two.summary.done == 4
    assert train(longer, tmp_path / "two", workers=2).summary == two.summary  # nothing left to do


def test_the_shares_of_a_batch_make_up_the_whole():
    """Without processes: the mean of the workers' losses, and of their gradients."""
    trainer = ArtTrainer(config())
    for size in (100, 3, 1):
        x, target = (part[:size] for part in trainer.batch())
        whole = trainer.loss_of(trainer.model(x), target)
        expected = torch.autograd.grad(whole, trainer.model.readout.weight)[0]
        losses = [_Alone(rank, 2).loss(trainer, x, target)[0] for rank in range(2)]
        torch.testing.assert_close(sum(losses) / 2, whole)
        found = torch.autograd.grad(sum(losses) / 2, trainer.model.readout.weight)[0]
        torch.testing.assert_close(found, expected)


class _Alone(Group):
    """A group whose other members do not answer."""

    def _add_up(self, value):
        return value


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "maze"}, "maze is not a supervised task"),
        ({"task": "familiarity-infinite-r3"}, "a batch of 1 cannot be shared by 2 workers"),
        ({"task": "art", "batch_size": 1}, "a batch of 1 cannot be shared by 2 workers"),
    ],
)
def test_what_cannot_be_shared_is_refused(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        train(experiments.default_config(**settings), tmp_path, workers=2)
    assert list(tmp_path.iterdir()) == []


def test_more_workers_than_the_cluster_has_room_for(ray, tmp_path):
    with pytest.raises(ClusterError, match="40 workers at once need each 1 CPU; the cluster has"):
        train(config(), tmp_path, workers=40)
    assert list(tmp_path.iterdir()) == []


def test_an_address_without_workers(tmp_path, capsys):
    assert main(["train", "art", "--address", "auto", "--out", str(tmp_path)]) == 2
    assert "--address is for training by several --workers" in capsys.readouterr().err
