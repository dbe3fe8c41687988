"""Networks for a model hub: written, read back bit for bit, and refused if something is wrong."""

import dataclasses
import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

import stpn
from stpn import hub, zoo
from stpn.cli import main
from stpn.errors import CheckpointError, ConfigError, RunError, StpnError
from stpn.experiments import default_config
from stpn.runs import Run, find
from stpn.training import session

TINY = {"epochs": 1, "train_size": 64, "validation_size": 8, "test_size": 50, "hidden_size": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    return session.start(default_config("art", "stpnf", seed=2, **TINY), root).run.path


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return hub.publish("art-stpnr", tmp_path_factory.mktemp("hub"))


@pytest.fixture
def copy(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def same(a: torch.nn.Module, b: torch.nn.Module) -> None:
    theirs = b.state_dict()
    assert a.state_dict().keys() == theirs.keys()
    for name, value in a.state_dict().items():
        assert torch.equal(value, theirs[name]), name


def edit(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


class TestWritten:
    @pytest.mark.parametrize("name", ["art-ustpnr", "familiarity-infinite-r3-hebbff", "maze-lstm"])
    def test_a_network_of_the_package(self, name, tmp_path):
        directory = hub.publish(name, tmp_path)
        assert directory == tmp_path / name
        assert {p.name for p in directory.iterdir()} == {
            "config.json", "model.safetensors", "README.md"
        }  # fmt: skip
        network = stpn.load(directory)
        assert not network.training
        same(network, stpn.pretrained(name))
        assert zoo.card_of(directory) == stpn.pretrained.card(name)

    def test_the_network_of_a_run(self, run, tmp_path, capsys):
        assert main(["export-hub", str(run), "--out", str(tmp_path), "--license", "cc0-1.0"]) == 0
        directory = tmp_path / "art-stpnf-seed2"
        assert f"hf upload USER/art-stpnf-seed2 {directory}" in capsys.readouterr().out
        same(stpn.load(directory), stpn.load(run))
        readme = (directory / "README.md").read_text()
        assert "license: cc0-1.0\n" in readme
        assert "1 epochs (the paper: 200)" in readme
        card, summary = zoo.card_of(directory), Run.open(run).summary
        assert (card.proficiency, card.seed) == (summary.proficiency, 2)
        # measured again, by the command that takes runs
        assert main(["eval", str(directory), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["proficiency"] == card.proficiency
        assert main(["show", str(directory)]) == 0
        assert capsys.readouterr().out == f"{card}\n"

    def test_what_was_written_is_compared_with_the_network(self, tmp_path, monkeypatch):
        """Also where the directory that is made has the name of the network."""

        def write(self, card, content):
            other = zoo.pretrained.content("art-stpnr").replace(content[-4:], b"\0\0\0\0")
            digest = hashlib.sha256(other).hexdigest()
            usual(self, dataclasses.replace(card, sha256=digest), other)

        usual = zoo.Published.write
        monkeypatch.setattr(zoo.Published, "write", write)
        monkeypatch.chdir(tmp_path)
        with pytest.raises(CheckpointError, match="is not that of the network"):
            hub.publish("art-stpnr", ".")

    def test_the_license_of_a_run_is_not_ours_to_say(self, run, tmp_path):
        readme = (hub.publish(run, tmp_path) / "README.md").read_text()
        assert "license" not in readme
        with pytest.raises(ConfigError, match="license must be an identifier"):
            hub.publish(run, tmp_path, license="mit\nname: x")

    def test_it_is_no_run(self, made):
        assert list(find(made.parent)) == []
        with pytest.raises(RunError, match="is a network without its run"):
            Run.open(made)

    def test_nothing_else_is_overwritten(self, run, tmp_path):
        place = tmp_path / "art-stpnr"
        shutil.copytree(run, place)
        before = (place / "config.json").read_bytes()
        with pytest.raises(RunError, match="nothing was changed"):
            hub.publish("art-stpnr", tmp_path)
        assert (place / "config.json").read_bytes() == before
        assert not (place / "model.safetensors").exists()
        hub.publish("art-lstm", tmp_path)
        hub.publish("art-lstm", tmp_path)  # itself it may replace
        edit(tmp_path / "art-lstm", sha256="0" * 64)
        with pytest.raises(RunError, match="another network, nothing was changed"):
            hub.publish("art-lstm", tmp_path)

    def test_an_unfinished_run_has_no_card(self, run, tmp_path):
        stopped = Path(shutil.copytree(run, tmp_path / "run"))
        (stopped / "summary.json").unlink()
        with pytest.raises(RunError, match="has not finished: a card needs its numbers"):
            hub.publish(stopped, tmp_path / "hub")
        assert not (tmp_path / "hub").exists()


class TestModelCard:
    def test_the_front_matter(self, made):
        yaml = pytest.importorskip("yaml")
        _, front, body = (made / "README.md").read_text().split("---\n", 2)
        found = yaml.safe_load(front)
        assert (found["license"], found["library_name"]) == ("mit", "stpn")
        assert {"stpn", "art", "stpnr"} <= set(found["tags"])
        (model,) = found["model-index"]
        accuracy, power = model["results"][0]["metrics"]
        card = stpn.pretrained.card("art-stpnr")
        assert (accuracy["type"], accuracy["value"]) == ("accuracy", card.proficiency)
        assert accuracy["name"] == "test accuracy, % (the paper's: 98.55 ± 2.76)"
        assert power["value"] == card.power
        assert "| test accuracy, % | 100 | 98.55 ± 2.76 |" in body
        assert "the highest test accuracy of 5 seeds" in body

    @pytest.mark.parametrize("name", ["art-stpnr", "maze-stpnr"])
    def test_the_hubs_own_library_reads_it(self, name):
        library = pytest.importorskip("huggingface_hub")
        card = library.ModelCard(hub.model_card(stpn.pretrained.card(name), license="mit"))
        numbers = [result.metric_value for result in card.data.eval_results]
        ours = stpn.pretrained.card(name)
        assert numbers == [ours.proficiency, ours.power]

    def test_an_environment_of_a_module_is_named(self):
        config = default_config("gym", "stpnr", env="games:Chess-v0").to_dict()
        card = dataclasses.replace(
            stpn.pretrained.card("maze-stpnr"), name="chess", task="gym", paper=None, config=config
        )
        readme = hub.model_card(card)
        assert 'stpn.load("chess", env="games:Chess-v0")' in readme
        assert "| | this network |\n" in readme

    @pytest.mark.parametrize("name", ["art-stpnr", "maze-stpnr"])
    def test_its_code_runs(self, name, tmp_path, monkeypatch):
        readme = (hub.publish(name, tmp_path) / "README.md").read_text()
        (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
        monkeypatch.chdir(tmp_path)
        exec(code, {})


class TestRefused:
    """What a stranger may have put there: a sentence, and nothing of it happens."""

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"library_name": "transformers"}, "is not of a network of stpn"),
            ({"format": 2}, "has format 2, this version of stpn reads 1"),
            ({"seed": "0"}, "'seed' must be a whole number"),
            ({"seed": 1}, "its seed is 1, and that of its settings 0"),
            ({"colour": "blue"}, "'colour' is unknown"),
            ({"paper": {"power": [1.0]}}, "'paper' must hold a mean and a deviation"),
            ({"config": {"task": "nonsense"}}, "config.json: .*nonsense"),
            ({"config": {"task": "art", "lr": "x"}}, "lr must be a number"),
            ({"sha256": "0" * 64}, "not the file that its card describes"),
        ],
    )
    def test_a_config_that_says_something_else(self, copy, changes, sentence):
        edit(copy, **changes)
        with pytest.raises(CheckpointError, match=sentence):
            stpn.load(copy)

    def test_weights_that_were_changed(self, copy):
        path = copy / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="not the file that its card describes"):
            stpn.load(copy)

    @pytest.mark.parametrize("content", [b"", b"\x80\x04.", b"\xff" * 99])
    def test_weights_that_are_no_safetensors(self, copy, content):
        (copy / "model.safetensors").write_bytes(content)
        edit(copy, sha256=hashlib.sha256(content).hexdigest())
        with pytest.raises(CheckpointError, match="is not a safetensors file"):
            stpn.load(copy)

    def test_settings_of_another_network(self, copy):
        settings = json.loads((copy / "config.json").read_text())["config"]
        edit(copy, config={**settings, "hidden_size": 12})
        with pytest.raises(CheckpointError, match=r"is \(11, .*\) there and \(12, .*\) here"):
            stpn.load(copy)

    def test_weights_of_another_network(self, copy):
        weights = load_file(copy / "model.safetensors")
        content = save({**weights, "extra": torch.zeros(1)})
        (copy / "model.safetensors").write_bytes(content)
        edit(copy, sha256=hashlib.sha256(content).hexdigest())
        with pytest.raises(CheckpointError, match="it has an unknown 'extra'"):
            stpn.load(copy)

    @pytest.mark.parametrize("read", [stpn.load, lambda path: zoo.opened(path).__enter__()])
    def test_a_network_too_large_for_any_memory_is_not_made(self, copy, read):
        settings = json.loads((copy / "config.json").read_text())["config"]
        edit(copy, config={**settings, "hidden_size": 2_000_000})  # 16 TB
        with pytest.raises(ConfigError, match="too many for the memory of this machine"):
            read(copy)

    def test_a_pipe_and_a_huge_file(self, copy):
        path = copy / "model.safetensors"
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(RunError, match="is not a regular file"):
            stpn.load(copy)
        path.unlink()
        with open(path, "wb") as file:
            file.truncate(2**40)
        with pytest.raises(RunError, match="more than the"):
            stpn.load(copy)

    def test_half_a_download(self, copy):
        (copy / "model.safetensors").unlink()
        with pytest.raises(RunError, match=r"whose model\.safetensors is not there; download"):
            stpn.load(copy)

    def test_no_module_is_imported_for_it(self, copy, monkeypatch):
        (copy / "evil_module.py").write_text("raise SystemExit('imported')")
        monkeypatch.chdir(copy)
        settings = default_config("gym", "stpnr", env="evil_module:Env").to_dict()
        edit(copy, task="gym", config=settings)
        with pytest.raises(StpnError, match="which imports the Python module 'evil_module'"):
            stpn.load(copy)

    def test_its_command_is_not_believed(self, copy):
        edit(copy, command="stpn train art; rm -rf ~")
        assert zoo.card_of(copy).command == stpn.pretrained.card("art-stpnr").command
