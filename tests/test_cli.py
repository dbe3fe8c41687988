"""The `stpn` command as a user meets it."""

import importlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from rich.console import Console

try:
    import gymnasium
except ImportError:
    gymnasium = None

import stpn
from stpn.cli import COMMANDS, main
from stpn.cli._progress import Bar
from stpn.errors import ConfigError
from stpn.results import load_results
from stpn.runs import Run, find
from stpn.training import checkpoint
from stpn.training.loop import Stop

TINY = ["--epochs", "2", "--train-size", "60", "--validation-size", "20", "--test-size", "20"]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture
def finished(runs, capsys):
    assert main(["train", "art", *TINY, "--quiet"]) == 0
    capsys.readouterr()
    return runs / "art" / "stpnr" / "seed0"


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


class TestOverview:
    @pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
    def test_help_names_every_command(self, capsys, arguments):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert all(name in out for name in COMMANDS)

    def test_help_loads_nothing_heavy(self):
        code = "import sys; from stpn.cli import main; main(['--help'])"
        assert python(f"{code}; sys.exit('torch' in sys.modules)").returncode == 0

    @pytest.mark.parametrize("name", COMMANDS)
    def test_every_command_has_help(self, capsys, name):
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0
        assert f"stpn {name}" in capsys.readouterr().out

    def test_version(self, capsys):
        assert main(["--version"]) == 0
        assert capsys.readouterr().out.startswith("stpn 0")

    def test_an_unknown_command_is_answered_with_the_nearest(self, capsys):
        assert main(["trian"]) == 2
        assert "unknown command 'trian'. Did you mean 'train'?" in capsys.readouterr().err

    def test_python_dash_m(self):
        done = subprocess.run(
            [sys.executable, "-m", "stpn", "--version"], capture_output=True, text=True
        )
        assert done.stdout.startswith("stpn ")

    def test_a_closed_pipe_is_no_crash(self):
        read, write = os.pipe()
        os.close(read)
        command = [sys.executable, "-m", "stpn", "list", "--json"]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
        os.close(write)
        assert "Traceback" not in done.stderr


class TestList:
    def test_tasks_models_and_figures(self, capsys):
        assert main(["list"]) == 0
        out = capsys.readouterr().out
        assert "familiarity-infinite-r6" in out
        assert "modplast" in out
        assert "98.55 ± 2.76" in out
        assert "lstm-normalized " in out

    def test_json(self, capsys):
        assert main(["list", "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        assert content["tasks"]["art"]["hidden_sizes"]["stpnr"] == 11
        assert "stpnr-public" in content["controls"]

    def test_runs(self, capsys, finished, runs):
        assert main(["list", "--runs", "runs"]) == 0
        assert "finished" in capsys.readouterr().out
        (runs / "art" / "broken").mkdir()
        (runs / "art" / "broken" / "config.json").write_text("{")
        assert main(["list", "--runs", "runs", "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        assert [run["status"] for run in content["runs"]] == ["finished"]
        assert len(content["problems"]) == 1


class TestTrain:
    def test_ends_with_our_figures_beside_the_papers_and_the_path(self, runs, capsys):
        assert main(["train", "art", *TINY]) == 0
        out = capsys.readouterr().out
        assert "epoch 2/2" in out
        assert "98.55 ± 2.76" in out
        assert "10.9 ± 3.8" in out
        assert "trained for 2 of the paper's 200 epochs" in out
        assert out.endswith("run: runs/art/stpnr/seed0\n")
        assert Run.open(runs / "art/stpnr/seed0").summary.finished

    def test_the_task_comes_first(self, runs, capsys):
        assert main(["train", "--seed", "1", "familiarity-infinite-r3"]) == 2
        assert "the task comes first: stpn train familiarity-" in capsys.readouterr().err

    def test_json_lines(self, runs, capsys):
        assert main(["train", "art", *TINY, "--json"]) == 0
        events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        kinds = [event["event"] for event in events if event["event"] != "progress"]
        assert kinds == ["started", "row", "row", "evaluating", "finished"]
        assert events[-1]["summary"]["done"] == 2

    def test_tensorboard_events_lie_beside_the_metrics(self, runs):
        pytest.importorskip("tensorboard")
        assert main(["train", "art", *TINY, "--quiet"]) == 0
        assert list((runs / "art/stpnr/seed0/tensorboard").glob("events.*"))
        assert main(["train", "art", *TINY, "--quiet", "--seed", "1", "--no-tensorboard"]) == 0
        assert not (runs / "art/stpnr/seed1/tensorboard").exists()

    def test_help_shows_the_defaults_of_task_and_model(self, capsys):
        with pytest.raises(SystemExit):
            main(["train", "familiarity-infinite-r6", "--model", "hebbff", "--help"])
        out = " ".join(capsys.readouterr().out.split())
        assert "(default: 3500)" in out
        assert "--log-every" in out
        assert "--batch-size" not in out

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["arts"], "unknown task 'arts' (did you mean 'art'?)"),
            (["art", "--model", "ltsm"], "unknown model 'ltsm' (did you mean 'lstm'?)"),
            (["art", "--epochs", "0"], "epochs must be >= 1, not 0"),
            (["art", "--optimizer", "Adm"], "unknown optimizer 'Adm' (did you mean 'Adam'?)"),
            (["art", "--model", "lstm", "--clamp", "1"], "clamp is a setting of STPN models"),
            (["--config", "missing.json"], "cannot read missing.json: No such file"),
        ],
    )
    def test_impossible_values_are_refused_before_anything_starts(
        self, runs, capsys, arguments, message
    ):
        assert main(["train", *arguments]) == 2
        assert message in capsys.readouterr().err
        assert not runs.exists()

    @pytest.mark.parametrize("arguments", [["--epoch", "3"], ["--epochs", "x"], ["--norm", "pst"]])
    def test_unknown_flags_and_wrong_types_are_refused(self, runs, arguments):
        with pytest.raises(SystemExit) as caught:
            main(["train", "art", *arguments])
        assert caught.value.code == 2
        assert not runs.exists()

    def test_an_existing_run_is_not_touched(self, finished, capsys):
        assert main(["train", "art", *TINY]) == 1
        assert "already holds a run, nothing was changed" in capsys.readouterr().err

    def test_config_file_and_flags_that_win(self, finished, runs, tmp_path, capsys):
        assert main(["train", "--config", str(finished / "config.json"), "--seed", "4"]) == 0
        run = Run.open(runs / "art/stpnr/seed4")
        assert (run.config["epochs"], run.config["train_size"]) == (2, 60)
        capsys.readouterr()
        assert (
            main(["train", "familiarity-infinite-r3", "--config", str(finished / "config.json")])
            == 2
        )
        assert "configures art, not familiarity-infinite-r3" in capsys.readouterr().err
        (tmp_path / "bad.json").write_text('{"task": "art", "epoch": 2}')
        assert main(["train", "--config", "bad.json"]) == 2
        assert "unknown setting of art 'epoch'" in capsys.readouterr().err

    def test_another_model_than_the_config_files_gets_its_own_size(self, finished, runs):
        arguments = [
            "train",
            "--config",
            str(finished / "config.json"),
            "--model",
            "rnn",
            "--quiet",
        ]
        assert main(arguments) == 0
        assert Run.open(runs / "art/rnn/seed0").config["hidden_size"] == 20

    def test_errors_are_json_too(self, finished, capsys):
        assert main(["train", "art", *TINY, "--json"]) == 1
        (event,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
        assert event["event"] == "error"
        assert "already holds a run" in event["message"]


@pytest.mark.skipif(gymnasium is None, reason="needs gymnasium")
class TestEnvironments:
    """`--env`: any Gymnasium environment, also one that the user has just written."""

    MODULE = """
import gymnasium as gym, numpy as np

class Light(gym.Env):
    def __init__(self, limit=5, broken=False):
        self.observation_space = gym.spaces.Box(-1, 1, (2,), dtype=np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.limit, self.broken = limit, broken
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, dtype=np.float32), {}
    def step(self, action):
        if self.broken:
            1 / 0  # line 15
        self.steps += 1
        return np.ones(2, dtype=np.float32), 1.0, self.steps == self.limit, False, {}

gym.register("Light-v0", entry_point=Light)
open("imported", "a").close()
"""
    TINY = ("--steps", "64", "--num-envs", "2", "--num-steps", "16", "--final-episodes", "2")

    @pytest.fixture
    def module(self, runs, monkeypatch):
        name = f"light_{random.randrange(10**9)}"
        (runs.parent / f"{name}.py").write_text(self.MODULE)
        monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(runs.parent))])
        yield f"{name}:Light-v0"
        gymnasium.registry.pop("Light-v0", None)
        sys.modules.pop(name, None)

    def test_a_module_in_the_current_directory_with_arguments(self, module, runs, capsys):
        flags = ["--env-args", "limit=3", "--quiet", *self.TINY]
        assert main(["train", "--env", module, *flags]) == 0
        out = capsys.readouterr().out
        assert f"{module} stpnr seed 0" in out
        assert "paper" not in out
        (run,) = find(runs)
        assert run.config["env_args"] == ["limit=3"]
        assert run.summary.proficiency == 3.0
        assert main(["export", "runs", "--networks", "networks"]) == 0
        assert "not shipped: results/gym" in capsys.readouterr().out

    def test_what_a_file_names_is_not_imported_unless_the_user_repeats_it(
        self, module, runs, capsys
    ):
        assert main(["train", "--env", module, "--quiet", *self.TINY]) == 0
        (run,) = find(runs)
        sys.modules.pop(module.partition(":")[0])
        gymnasium.registry.pop("Light-v0")
        os.remove("imported")
        path = str(run.path)
        commands = [["eval", path], ["resume", path, "--total", "96"],
                    ["train", "--config", f"{path}/config.json", "--out", "other"]]  # fmt: skip
        commands += [["watch", path]] if find_spec("imageio") else []
        for command in commands:
            capsys.readouterr()
            assert main(command) == 2
            assert f"if you trust it, say so: --env {module}" in capsys.readouterr().err
            assert not os.path.exists("imported")
        with pytest.raises(ConfigError, match="imports the Python module"):
            stpn.load(path)
        assert main(["eval", path, "--env", module]) == 0
        assert os.path.exists("imported")
        network = stpn.load(path, env=module)
        assert network.config.env == module
        assert not network.training

    def test_an_error_in_it_is_located(self, module, capsys):
        flags = ["--env-args", '{"broken": true}', *self.TINY]
        assert main(["train", "--env", module, *flags]) == 1
        err = capsys.readouterr().err
        assert "ZeroDivisionError" in err
        assert re.search(r"light_\d+\.py, line 15", err)

    def test_atari_needs_no_import(self, runs, capsys):
        pytest.importorskip("ale_py")
        assert main(["train", "--env", "ALE/Nothing-v5", *self.TINY]) == 2
        assert "Namespace ALE not found" not in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["train", "gym"], "name the environment"),
            (["train", "art", "--env", "CartPole-v1"], "stpn train --env CartPole-v1"),
            (["train", "art", "--iterations", "5"], "the length of art is --epochs"),
            (["train", "art", "--device", "cuda:77"], "there is no device 'cuda:77' here"),
            (["train", "maze", "--concentration", "1"], "is a setting of a2c: add --algo a2c"),
            (["train", "maze", "--epochs", "2"], "the length of maze is --iterations"),
            (["train", "maze", "--grad-norm", "2"], "--grad-norm is --max-grad-norm now"),
            (["train", "maze", "--protocol", "paper"], "--protocol is --preset now"),
            (["train", "maze", "--algo", "pppo"], "unknown algorithm 'pppo' (did you mean 'ppo'?)"),
            (["train", "--env", "X-v0", "--env-args", "slippery"], "env_args takes KEY=VALUE"),
            (["watch", "maze-stpnr", "--seed", "-1"], "seed must be >= 0"),
            (["resume", "art-stpnr"], "a network of the package, not a run"),
            (["eval", "art-stpnr", "--episodes", "3"], "has no episodes"),
        ],
    )
    def test_misuse_is_answered_with_what_to_write(self, runs, capsys, arguments, sentence):
        assert main(arguments) == 2
        assert sentence in capsys.readouterr().err

    def test_help_points_to_reinforcement_learning(self, capsys):
        with pytest.raises(SystemExit):
            main(["train", "--help"])
        assert "stpn train --env NAME --help" in capsys.readouterr().out
        with pytest.raises(SystemExit):
            main(["train", "--env", "NAME", "--help"])
        assert "--env-args" in capsys.readouterr().out


class TestInterrupted:
    """Ctrl-C is one line and exit code 130, wherever it falls."""

    @pytest.mark.parametrize("command", COMMANDS)
    def test_in_any_command(self, command, monkeypatch, capsys):
        def interrupted(arguments):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

        module = importlib.import_module(COMMANDS[command][0])
        monkeypatch.setattr(module, "run", interrupted)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Ray leaves its own
        try:
            assert main([command]) == 130
        finally:
            signal.signal(signal.SIGINT, before)
        assert capsys.readouterr().err == f"stpn {command}: interrupted\n"

    def test_in_the_middle_of_an_import_that_swallows_it(self, tmp_path):
        heavy = "import os, signal\ntry:\n os.kill(os.getpid(), signal.SIGINT)\nfinally: pass\n"
        swallows = "try:\n import heavy\nexcept BaseException: raise ImportError('damaged')\n"
        (tmp_path / "heavy.py").write_text(heavy)
        (tmp_path / "torch.py").write_text(swallows)
        code = (
            "import sys; from stpn.cli import main, evaluate\n"
            f"sys.path.insert(0, {str(tmp_path)!r})\n"
            "evaluate.run = lambda arguments: __import__('torch')\n"
            "sys.exit(main(['eval', 'art-stpnr']))"
        )
        done = python(code)
        assert (done.returncode, done.stderr) == (130, "stpn: interrupted\n")


class TestTerminal:
    """What the live bar shows, on the terminal that everybody has: 80 columns."""

    def test_the_bar_and_all_facts_fit(self):
        config = SimpleNamespace(title="art fastweights seed 0", unit="epoch")
        trainer = SimpleNamespace(
            config=config, progress=0.0, samples=0, done=0, total=200, loss=0.001234,
            sample_unit="sequences", proficiency_name="validation accuracy",
        )  # fmt: skip
        output = io.StringIO()
        stop = Stop()
        bar = Bar(Console(file=output, width=80, force_terminal=True), stop)
        bar.started(None, trainer)
        trainer.done = trainer.progress = 187
        trainer.samples = 2_000
        bar.measured({"proficiency": 99.99, "power": 4.341})
        bar.progressed(trainer)
        bar._bar.refresh()
        bar.measuring(trainer)
        trainer.on_measuring(0.25)
        bar._bar.refresh()
        stop.request()
        bar.ended()
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue())
        assert "…" not in shown
        assert re.search(r"art fastweights seed 0 [━╸╺]+ epoch 187/200 · 0:00 left", shown)
        facts = r"loss 0.001234 · validation accuracy 99.99 · power 4.34 · [\d,]+ sequences/s"
        assert re.search(facts, shown)
        assert "measuring 25%" in shown
        assert shown.rstrip().endswith("stopping after this update (Ctrl-C again to stop at once)")

    def test_resuming_a_finished_run_says_so(self, finished, capsys):
        assert main(["resume", str(finished)]) == 0
        out = capsys.readouterr().out
        assert "finished already; --total makes it longer" in out
        assert main(["resume", str(finished), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["event"] == "finished"


class TestLook:
    def test_show(self, finished, capsys):
        assert main(["show", str(finished)]) == 0
        out = capsys.readouterr().out
        assert "finished" in out
        assert "98.55 ± 2.76" in out
        assert "epochs=2" in out

    def test_show_an_unfinished_run(self, runs, capsys):
        Run.create(runs / "r", {"task": "art", "model": "stpnr", "seed": 0})
        assert main(["show", "runs/r"]) == 0
        out = capsys.readouterr().out
        assert "runs/r: new" in out
        assert "stpn resume runs/r" in out

    def test_show_json(self, finished, capsys):
        assert main(["show", str(finished), "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        assert content["status"] == "finished"
        assert content["last"]["step"] == 2

    def test_show_what_is_no_run(self, tmp_path, capsys):
        assert main(["show", str(tmp_path)]) == 1
        assert "is not a run" in capsys.readouterr().err
        assert main(["show", str(tmp_path / "none")]) == 1
        assert "there is no run at" in capsys.readouterr().err

    def test_eval_with_a_seed_measures_other_data(self, finished, capsys):
        def measured(*flags):
            assert main(["eval", str(finished), "--json", *flags]) == 0
            return json.loads(capsys.readouterr().out)

        usual, fresh, again = measured(), measured("--seed", "7"), measured("--seed", "7")
        assert fresh["power"] == again["power"] != usual["power"]
        assert (fresh["seed"], fresh["measured_with_seed"]) == (0, 7)
        assert main(["eval", str(finished), "--seed", "7"]) == 0
        assert "art stpnr seed 0, measured with seed 7" in capsys.readouterr().out

    def test_eval_repeats_the_summary_and_changes_nothing(self, finished, capsys):
        before = {p: p.stat().st_mtime_ns for p in finished.iterdir()}
        assert main(["eval", str(finished), "--json"]) == 0
        again, summary = json.loads(capsys.readouterr().out), Run.open(finished).summary
        for key in ("proficiency", "power", "power_per_step", "done", "finished"):
            assert again[key] == getattr(summary, key)
        assert {p: p.stat().st_mtime_ns for p in finished.iterdir()} == before
        assert main(["eval", str(finished)]) == 0
        assert "98.55 ± 2.76" in capsys.readouterr().out

    def test_a_stopped_run_has_no_test_accuracy_yet(self, finished, capsys):
        (finished / "summary.json").unlink()
        assert main(["show", str(finished)]) == 0
        printed = capsys.readouterr().out
        assert "validation accuracy" in printed
        assert "test accuracy" not in printed

    def test_export(self, finished, tmp_path, capsys):
        Run.create(finished.parent / "seed1", {"task": "art", "model": "stpnr", "seed": 1})
        assert main(["export", "runs", "results"]) == 0
        out = capsys.readouterr().out
        assert "1 run written below results" in out
        assert "unfinished, left out: runs/art/stpnr/seed1" in out
        assert (tmp_path / "results/art/stpnr/seed0.json").exists()

    def test_a_checkpoint_kept_beside_its_export_goes_on_as_the_run_does(self, finished):
        assert main(["export", "runs", "results", "--checkpoints"]) == 0
        kept = Run.open("results/art/stpnr/seed0")
        assert len(load_results("results")) == 1
        more = str(kept.summary.done + 1)
        for path in (kept.path, finished):
            assert main(["resume", str(path), "--total", more, "--quiet"]) == 0
        ours, theirs = (Run.open(path).summary for path in (kept.path, finished))
        for figure in ("done", "proficiency", "power", "power_per_step"):
            assert getattr(ours, figure) == getattr(theirs, figure)


def train_command(root, *flags):
    return [sys.executable, "-m", "stpn", "train", "art", "--out", str(root), "--json", *flags]


LONG = ["--epochs", "10", "--train-size", "6400", "--validation-size", "20", "--test-size", "200"]
LONG += ["--threads", "1", "--checkpoint-seconds", "0.05", "--no-tensorboard"]


@pytest.mark.slow
def test_killed_again_and_again_a_run_ends_bit_identical(tmp_path):
    """kill -9 at random moments until the run is through, then compare with an unharmed one."""
    rng = random.Random(0)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run(train_command(whole, *LONG), check=True, stdout=subprocess.DEVNULL)
    path = cut / "art" / "stpnr" / "seed0"
    command, kills = train_command(cut, *LONG), 0
    while True:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()  # it has started
        if kills < 4:
            time.sleep(rng.uniform(0, 0.2))
            process.kill()
        process.stdout.read()
        process.stdout.close()
        if process.wait() == 0:
            break
        assert process.returncode == -signal.SIGKILL
        kills += 1
        Run.open(path).metrics()  # readable at any kill point
        command = [sys.executable, "-m", "stpn", "resume", str(path), "--json", "--no-tensorboard"]
    assert kills == 4
    (a,), (b,) = find(whole), find(cut)
    ours, theirs = checkpoint.read(a.checkpoint), checkpoint.read(b.checkpoint)
    assert flat(ours["trainer"]) == flat(theirs["trainer"])
    assert (ours["torch_rng"] == theirs["torch_rng"]).all()
    drop = {"seconds": None}
    assert [{**row, **drop} for row in a.metrics()] == [{**row, **drop} for row in b.metrics()]
    assert a.summary.proficiency == b.summary.proficiency


def flat(value):
    if isinstance(value, dict):
        return {key: flat(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [flat(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.slow
def test_ctrl_c_saves_and_names_the_command_that_goes_on(tmp_path):
    command = [sys.executable, "-m", "stpn", "train", "art", "--out", str(tmp_path), *LONG]
    process = subprocess.Popen([*command, "--epochs", "100000"], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out = process.stdout.read()
    process.stdout.close()
    assert process.wait() == 130
    assert out.endswith(f"go on with:\n  stpn resume {tmp_path}/art/stpnr/seed0\n")
    assert Run.open(tmp_path / "art/stpnr/seed0").status == "stopped"


@pytest.mark.slow
def test_a_second_process_is_kept_out(tmp_path):
    first = subprocess.Popen(
        train_command(tmp_path, *LONG, "--epochs", "100000"), stdout=subprocess.PIPE, text=True
    )
    first.stdout.readline()
    path = tmp_path / "art/stpnr/seed0"
    second = subprocess.run(
        [sys.executable, "-m", "stpn", "resume", str(path)], capture_output=True, text=True
    )
    assert second.returncode == 1
    assert f"is in use by process {first.pid} on" in second.stderr
    first.terminate()
    first.stdout.read()
    first.stdout.close()
    assert first.wait() == 128 + signal.SIGTERM
