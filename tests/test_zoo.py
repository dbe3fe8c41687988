"""Trained networks: made from runs, read back, and those of the package as good as they say."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

import stpn
from stpn import zoo
from stpn.cli import main
from stpn.errors import CheckpointError, ConfigError
from stpn.experiments import default_config
from stpn.results import load_results
from stpn.runs import Run
from stpn.tasks import art
from stpn.training import session

RESULTS = Path(__file__).parents[1] / "results"
TINY = {"epochs": 1, "train_size": 64, "validation_size": 8, "test_size": 50}
NAMES = stpn.pretrained.names()
# One of each task in the quick loop.
QUICK = ("art-stpnr", "familiarity-infinite-r3-hebbff", "maze-stpnr", "pendulum-lstm")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        session.start(default_config("art", "stpnr", seed=seed, **TINY), root)
    session.start(default_config("art", "lstm", **TINY), root)
    long = {"iterations": 1, "length": 30, "eval_sequences": 1}
    session.start(default_config("familiarity-infinite-r3", "hebbff", **long), root)
    return root


@pytest.fixture
def shelf(runs, tmp_path, capsys):
    arguments = [str(runs), str(tmp_path / "results"), "--networks", str(tmp_path / "networks")]
    assert main(["export", *arguments]) == 0
    capsys.readouterr()
    return zoo.Shelf(tmp_path / "networks")


class TestMade:
    def test_one_of_each_task_and_model_in_the_papers_order(self, shelf):
        assert shelf.names() == ["art-stpnr", "art-lstm", "familiarity-infinite-r3-hebbff"]

    def test_the_best_seed_is_taken(self, shelf, runs):
        numbers = [Run(runs / f"art/stpnr/seed{i}").summary.proficiency for i in range(3)]
        card = shelf.card("art-stpnr")
        assert card.proficiency == max(numbers)
        assert card.seed == numbers.index(max(numbers))
        assert card.chosen == "the highest test accuracy of 3 seeds"
        assert shelf.card("art-lstm").chosen == "the only seed"

    def test_results_of_runs_that_are_gone_count(self, runs, tmp_path, capsys):
        """Runs come and go, results stay: what was shipped is replaced by something better only."""
        numbers = [Run(runs / f"art/stpnr/seed{i}").summary.proficiency for i in range(3)]
        best = numbers.index(max(numbers))
        others = [i for i in range(3) if i != best]
        here, results, networks = (tmp_path / name for name in ("here", "results", "networks"))

        def export(*seeds: int) -> int:
            shutil.rmtree(here, ignore_errors=True)
            for seed in seeds:
                shutil.copytree(runs / f"art/stpnr/seed{seed}", here / f"art/stpnr/seed{seed}")
            return main(["export", str(here), str(results), "--networks", str(networks)])

        assert export(others[0]) == 0
        assert zoo.Shelf(networks).card("art-stpnr").seed == others[0]
        assert export(best) == 0
        assert export(others[1]) == 0
        card = zoo.Shelf(networks).card("art-stpnr")
        assert card.seed == best
        assert card.chosen == "the highest test accuracy of 3 seeds"
        assert "networks in" in capsys.readouterr().out

        (networks / "art-stpnr.json").unlink()
        assert export(others[0]) == 1
        assert f"seed{best}.json, whose run is not here" in capsys.readouterr().out

    def test_weights_and_numbers_are_those_of_the_run(self, shelf, runs):
        card = shelf.card("art-stpnr")
        with session.restored(runs / f"art/stpnr/seed{card.seed}") as trainer:
            expected = trainer.model.state_dict()
        network = shelf("art-stpnr")
        assert not network.training
        for name, tensor in network.state_dict().items():
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0)
        assert shelf.measure("art-stpnr")[1].proficiency == card.proficiency

    def test_the_card_can_be_read(self, shelf):
        text = str(shelf.card("art-stpnr"))
        assert "STPN, recurrent" in text
        assert "(paper: 98.55 ± 2.76)" in text
        assert "stpn train art --model stpnr --seed " in text
        assert "--epochs 1 " in text
        assert "1 of the paper's 200 epochs, seed" in text

    def test_its_command_gives_the_same_configuration(self, shelf):
        from stpn.cli.train import parse

        for card in shelf.cards():
            config, *_ = parse(card.command.split()[2:])
            assert config.to_dict() == card.config

    def test_a_large_network_is_named_and_left_out(self, runs, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(zoo, "LARGEST", 12_000)
        arguments = [str(runs), str(tmp_path / "results"), "--networks", str(tmp_path / "networks")]
        assert main(["export", *arguments]) == 0
        out = capsys.readouterr().out
        assert "networks in" in out
        assert "not shipped: familiarity-infinite-r3-hebbff has" in out

    def test_a_damaged_file_is_refused(self, shelf):
        path = shelf.directory / "art-lstm.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged"):
            shelf("art-lstm")

    def test_a_card_of_another_version_is_refused(self, shelf):
        path = shelf.directory / "art-lstm.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "blue"}))
        with pytest.raises(CheckpointError, match=r"is damaged or of another version: 'colour'"):
            shelf.card("art-lstm")

    def test_loading_leaves_the_random_stream_alone(self, shelf):
        before = torch.get_rng_state()
        shelf("art-stpnr")
        assert torch.equal(torch.get_rng_state(), before)

    def test_an_unknown_name_lists_the_known(self, shelf):
        with pytest.raises(ConfigError, match=r"did you mean 'art-lstm'.*known: art-stpnr, art-"):
            shelf("art-ltsm")


class TestOfThePackage:
    def test_there_are_some(self):
        assert "art-stpnr" in NAMES

    @pytest.mark.parametrize(
        "name",
        [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in NAMES],
    )
    def test_reaches_its_numbers_again(self, name):
        card = stpn.pretrained.card(name)
        if card.metric != "reward":
            # another processor adds in another order, which may tip a few sequences
            _, numbers = stpn.pretrained.measure(name)
            assert numbers.proficiency == pytest.approx(card.proficiency, abs=0.1)
            assert numbers.power == pytest.approx(card.power, rel=0.02)
            return
        pytest.importorskip("mujoco" if card.task == "pendulum" else "gymnasium")
        if card.task == "pong":
            pytest.skip("its games take minutes where cores are busy: stpn eval pong-stpnr")
        # episodes of the pendulum have a thousand steps
        episodes = min(card.config["final_episodes"], 20 if card.task == "pendulum" else 512)
        _, numbers = stpn.pretrained.measure(name, final_episodes=episodes)
        error = numbers.extras["reward_std"] / episodes**0.5
        tolerance = 4 * error + 0.02 * abs(card.proficiency)
        assert numbers.proficiency == pytest.approx(card.proficiency, abs=tolerance)
        assert numbers.power == pytest.approx(card.power, rel=0.1)

    @pytest.mark.parametrize("name", NAMES)
    def test_its_numbers_are_those_of_the_results(self, name):
        card = stpn.pretrained.card(name)
        runs = load_results(RESULTS / card.task / card.model)
        (run,) = [run for run in runs if run.seed == card.seed]
        assert run.summary.proficiency == card.proficiency
        assert run.summary.power == card.power
        assert run.summary.commit == card.commit
        assert run.config == card.config
        assert card.proficiency == max(r.summary.proficiency for r in runs)

    def test_is_small(self):
        for path in zoo.SHELF.iterdir():
            assert path.stat().st_size <= zoo.LARGEST

    def test_answers_a_sequence(self):
        network = stpn.pretrained("art-stpnr")
        assert art.answer(network, "c9k8j3??k") == "8"
        assert art.answer(network, "c9k8j3??c") == "9"

    def test_list_and_eval_know_them(self, capsys):
        assert main(["list"]) == 0
        assert "art-stpnr" in capsys.readouterr().out
        assert main(["list", "--json"]) == 0
        networks = json.loads(capsys.readouterr().out)["networks"]
        assert networks == [dataclasses.asdict(card) for card in stpn.pretrained.cards()]
        assert main(["eval", "art-stpnr", "--json"]) == 0
        summary = json.loads(capsys.readouterr().out)
        assert summary["proficiency"] >= 98.5
        assert summary["seconds"] is None

    def test_show_prints_the_card(self, capsys):
        card = stpn.pretrained.card("art-stpnr")
        assert main(["show", "art-stpnr"]) == 0
        assert capsys.readouterr().out == f"{card}\n"
        assert main(["show", "art-stpnr", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == dataclasses.asdict(card)

    def test_what_is_neither_run_nor_network(self, capsys):
        assert main(["eval", "art-ltsm"]) == 1
        assert "no network of the package has that name" in capsys.readouterr().err

    def test_a_run_directory_of_that_name_goes_first(self, runs, tmp_path, monkeypatch, capsys):
        shutil.copytree(runs / "art/lstm/seed0", tmp_path / "art-stpnr")
        monkeypatch.chdir(tmp_path)
        assert main(["eval", "art-stpnr"]) == 0
        assert "art lstm" in capsys.readouterr().out
