"""Training, measuring and loading on another device than the CPU."""

from dataclasses import replace

import pytest
import torch
from second_device import DEVICE, second_device

import stpn
from stpn import devices
from stpn.cli import main
from stpn.errors import ConfigError
from stpn.experiments import default_config
from stpn.runs import Run
from stpn.tasks import art
from stpn.training import checkpoint, session

SMALL = {
    "art": {"epochs": 2, "train_size": 64, "validation_size": 16, "test_size": 20},
    "familiarity-infinite-r3": {"iterations": 2, "length": 30, "eval_sequences": 1},
}
AGENT = {
    "num_envs": 4, "num_steps": 6, "eval_every": 4, "eval_episodes": 4, "final_episodes": 4,
    "hidden_size": 5,
}  # fmt: skip


def weights(run):
    return checkpoint.weights(run.checkpoint)


def on_specification(config):
    """The second device has no kernels, so the CPU must not have them either, to compare bits."""
    return replace(config, backend="reference", threads=1)


class TestSecondDevice:
    """Does it do what a device does? Else it proves nothing."""

    def test_refuses_what_a_gpu_refuses(self):
        with second_device():
            there, here = torch.ones(3, device="lazy"), torch.ones(3)
            assert there.device == DEVICE
            assert (there + 1).sum().item() == 6
            with pytest.raises((TypeError, RuntimeError)):
                there.numpy()
            with pytest.raises(RuntimeError, match="same device"):
                there + here
            assert there.cpu().numpy().tolist() == [1, 1, 1]

    def test_gradients(self):
        with second_device():
            x = torch.ones(2, device="lazy", requires_grad=True)
            (x * x).sum().backward()
            assert x.grad.device == DEVICE
            assert x.grad.cpu().tolist() == [2, 2]


class TestFound:
    def test_auto_is_a_gpu_where_there_is_one(self, monkeypatch):
        if not torch.cuda.is_available():
            assert devices.find("auto") == torch.device("cpu")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert devices.find("auto") == torch.device("cuda")

    @pytest.mark.parametrize("name", ["cuda:77", "xpu", "mps"])
    def test_one_that_is_not_there_is_a_sentence(self, name):
        with pytest.raises(
            ConfigError, match=f"there is no device '{name}' here .{{,120}}; --device cpu works"
        ):
            devices.find(name)

    @pytest.mark.parametrize("name", ["gpu", "meta", "cuda:x"])
    def test_what_is_no_device_is_a_sentence(self, name):
        with pytest.raises(ConfigError, match="device"):
            devices.find(name)

    def test_the_command_says_so(self, tmp_path, capsys):
        assert main(["train", "art", "--device", "cuda:77", "--out", str(tmp_path)]) == 2
        assert "there is no device 'cuda:77' here" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("task", "model"), [("art", "stpnr"), ("familiarity-infinite-r3", "lstm")])
def test_supervised_training_is_the_same_there(task, model, tmp_path):
    config = on_specification(default_config(task, model, **SMALL[task]))
    session.start(config, tmp_path / "here")
    with second_device():
        there = replace(config, device="lazy")
        outcome = session.start(there, tmp_path / "there")
    here, there = (Run(tmp_path / name / config.directory) for name in ("here", "there"))
    assert there.config["device"] == "lazy"
    assert outcome.summary.proficiency == here.summary.proficiency
    assert outcome.summary.power == pytest.approx(here.summary.power)
    for name, tensor in weights(here).items():
        torch.testing.assert_close(weights(there)[name], tensor)


@pytest.mark.parametrize(
    "settings",
    [
        {"algo": "ppo", "minibatch_size": 8, "sequence_length": 4, "update_epochs": 2},
        {"algo": "a2c", "privileged_critic": True, "auxiliary": 0.1, "average": 0.9},
    ],
    ids=["ppo", "a2c, privileged, averaged"],
)
def test_an_agent_learns_there_and_acts_here(settings, tmp_path):
    pytest.importorskip("gymnasium")
    config = on_specification(default_config("maze", "stpnr", **AGENT | settings, iterations=4))
    with session.built(config) as here:
        for _ in range(2):
            here.update()
        with second_device(), session.built(replace(config, device="lazy")) as there:
            before = there.model.heads.weight.detach().clone()
            for _ in range(2):
                there.update()
            assert there.learner.heads.weight.device == DEVICE
            assert there.model.heads.weight.device.type == "cpu"
            assert (there.model.heads.weight != before).any()
            checkpoint.write(tmp_path / "saved", there.state_dict())
        for name, tensor in here.model.state_dict().items():
            torch.testing.assert_close(there.model.state_dict()[name], tensor)
    with session.built(config) as again:  # on the CPU
        saved = checkpoint.like(checkpoint.read(tmp_path / "saved"), again.state_dict())
        again.load_state_dict(saved)
        again.update()
    with second_device(), session.built(replace(config, device="lazy")) as there:
        saved = checkpoint.like(checkpoint.read(tmp_path / "saved"), there.state_dict())
        there.load_state_dict(saved)
        there.update()
    for name, tensor in again.model.state_dict().items():
        torch.testing.assert_close(there.model.state_dict()[name], tensor)


def test_a_run_moves_from_one_device_to_the_other(tmp_path):
    config = on_specification(default_config("art", "stpnr", **SMALL["art"]))
    session.start(config, tmp_path / "straight")
    config = replace(config, epochs=1, device="lazy")
    with second_device():
        session.start(config, tmp_path / "moved")
    run = Run(tmp_path / "moved" / config.directory)
    with pytest.raises(ConfigError, match="there is no device 'lazy' here"):
        session.resume(run.path, total=2)
    session.resume(run.path, total=2, device="cpu")
    assert run.config["device"] == "cpu"
    straight = Run(tmp_path / "straight" / config.directory)
    for name, tensor in weights(straight).items():
        torch.testing.assert_close(weights(run)[name], tensor)


def test_a_run_of_a_gpu_is_measured_where_there_is_none(tmp_path):
    config = on_specification(default_config("art", "stpnr", **SMALL["art"]))
    with second_device():
        there = session.start(replace(config, device="lazy"), tmp_path)
    with session.restored(there.run.path) as trainer:
        assert trainer.device.type == "cpu"
        assert trainer.evaluate().proficiency == there.summary.proficiency
    network = stpn.load(there.run.path)
    assert network.readout.weight.device.type == "cpu"


def test_a_network_of_the_package_answers_there():
    with second_device(), stpn.use_backend("reference"):
        network = stpn.pretrained("art-stpnr", device="lazy")
        assert network.readout.weight.device == DEVICE
        assert art.answer(network, "c9k8j3??k") == "8"


def test_a_network_is_measured_there():
    with second_device(), stpn.use_backend("reference"):
        settings = {"test_size": 50, "device": "lazy"}
        trainer, figures = stpn.pretrained.measure("art-stpnr", **settings)
        assert trainer.device.type == "lazy"
    assert figures.proficiency == 100.0
