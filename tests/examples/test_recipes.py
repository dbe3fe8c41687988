"""The recipes: in each library the core gives what it gives in our own agent, across ends of
episodes, while acting and when it is replayed, and learns.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stpn
from stpn.nn.registry import build
from stpn.training.agent import Agent, Vector
from stpn.training.policies import policy_for

gym = pytest.importorskip("gymnasium")
RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def recipe(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(RECIPES))
    return importlib.import_module(name)


def our_agent(core: stpn.nn.RecurrentCore, policy_head: nn.Linear, value_head: nn.Linear) -> Agent:
    """The package's agent around a copy of the core and the heads of another library's network."""
    recall = sys.modules["recall"]
    copied = build("stpnr", core.input_size, core.hidden_size, batch_first=True, **OPTIONS)
    copied.load_state_dict(core.state_dict())
    agent = Agent(Vector((recall.CUES,)), copied, policy_for(recall.Recall.action_space))
    with torch.no_grad():
        agent.heads.weight.copy_(torch.cat([policy_head.weight, value_head.weight]))
        agent.heads.bias.copy_(torch.cat([policy_head.bias, value_head.bias]))
    return agent


OPTIONS = {"num_layers": 2, "norm": "pre"}


def lived(agent: Agent, seen: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (B, T, P) and values (B, T) of our agent for the same observations, step by step."""
    state, rows = agent.core.initial_state(len(seen)), []
    with torch.no_grad():
        for t in range(seen.shape[1]):
            heads, state = agent.step(seen[:, t], state, reset=begins[:, t])
            rows.append(heads)
    heads = torch.stack(rows, dim=1)
    return heads[..., :-1], heads[..., -1]


def strong(*modules: nn.Module) -> None:
    """Weights that make a forgotten reset show: networks start with almost no plasticity."""
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)


def log_probs(logits: Tensor, actions: Tensor) -> Tensor:
    return torch.distributions.Categorical(logits=logits).log_prob(actions)


class TestStableBaselines:
    @pytest.mark.parametrize("shared", [False, True])
    def test_acting_and_replay_are_those_of_our_agent(
        self, monkeypatch: pytest.MonkeyPatch, shared: bool
    ) -> None:
        pytest.importorskip("sb3_contrib")
        sb3 = recipe("sb3_recurrent_ppo", monkeypatch)
        envs = sb3.DummyVecEnv([lambda: gym.make("Recall-v0")] * 3)
        core = {"core": OPTIONS, "lstm_hidden_size": 7, "net_arch": []}
        core |= {"shared_lstm": shared, "enable_critic_lstm": not shared}
        algorithm = sb3.RecurrentPPO(
            sb3.STPNPolicy, envs, policy_kwargs=core, n_steps=40, batch_size=33, device="cpu"
        )
        policy = algorithm.policy
        strong(policy)
        _, callback = algorithm._setup_learn(1000)
        buffer = algorithm.rollout_buffer
        history: list[list[Tensor]] = []
        for _ in range(2):  # the second one starts within episodes
            algorithm.collect_rollouts(envs, callback, buffer, 40)
            names = ("observations", "episode_starts", "actions", "values", "log_probs")
            history.append([torch.as_tensor(getattr(buffer, name)).clone() for name in names])
        seen, begins, actions, values, logs = (
            torch.cat(parts).transpose(0, 1) for parts in zip(*history, strict=True)
        )
        assert begins[:, 1:].sum() > 10
        critic = policy.lstm_actor if shared else policy.lstm_critic
        actor = our_agent(policy.lstm_actor.core, policy.action_net, policy.value_net)
        valuer = our_agent(critic.core, policy.action_net, policy.value_net)
        logits, _ = lived(actor, seen, begins > 0.5)
        _, expected = lived(valuer, seen, begins > 0.5)
        torch.testing.assert_close(values, expected, **CLOSE)
        torch.testing.assert_close(logs, log_probs(logits, actions.squeeze(2).long()), **CLOSE)

        for batch in buffer.get(33):  # cut anywhere, padded
            again, log_prob, _ = policy.evaluate_actions(
                batch.observations, batch.actions.flatten(), batch.lstm_states, batch.episode_starts
            )
            real = batch.mask > 0.5
            torch.testing.assert_close(again.flatten()[real], batch.old_values[real], **CLOSE)
            torch.testing.assert_close(log_prob[real], batch.old_log_prob[real], **CLOSE)

    def test_it_learns_predicts_and_loads(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        pytest.importorskip("sb3_contrib")
        sb3 = recipe("sb3_recurrent_ppo", monkeypatch)
        algorithm = sb3.train(steps=600)
        before = {name: value.clone() for name, value in algorithm.policy.state_dict().items()}
        algorithm.learn(512)  # the optimizer has the parameters of the cores
        for name in ("lstm_actor.core.gamma_l0", "lstm_critic.core.lambda_l0"):
            assert not before[name].equal(algorithm.policy.state_dict()[name]), name
        algorithm.save(tmp_path / "saved")
        loaded = sb3.RecurrentPPO.load(tmp_path / "saved", device="cpu")
        seen = torch.eye(4).numpy()
        action, state = algorithm.predict(seen, deterministic=True)
        again, other = loaded.predict(seen, deterministic=True)
        assert (action == again).all()
        assert (state[0] == other[0]).all()


@pytest.mark.filterwarnings("ignore:Creating .*WeightUpdater:DeprecationWarning")  # its own
class TestTorchRL:
    @pytest.fixture
    def torchrl(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        pytest.importorskip("torchrl")
        return recipe("torchrl_ppo", monkeypatch)

    def test_acting_replay_and_next_values_are_those_of_our_agent(
        self, torchrl: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stpn, "build", lambda *a, **k: build(*a, **k, **OPTIONS))
        both, module = torchrl.make_actor_critic("Recall-v0", "stpnr", 7)
        strong(both)
        actor, critic = both.get_policy_operator(), both.get_value_operator()
        env = torchrl.make_env("Recall-v0", module, 3)
        played = torchrl.Collector(env, actor, frames_per_batch=60, total_frames=120)
        first, second = (data.clone() for data in played)  # (3, 20) each
        played.shutdown()
        for data in (first, second):
            torchrl.add_advantages(data, critic, gamma=0.9, lmbda=0.95)
        data = torch.cat([first, second], dim=1)
        begins = data["is_init"].squeeze(2)
        assert begins[:, 1:].sum() > 10
        agent = our_agent(module.core, both[1].module[0].module, both[2].module)
        logits, values = lived(agent, data["observation"], begins)
        torch.testing.assert_close(data["logits"], logits, **CLOSE)
        torch.testing.assert_close(data["state_value"].squeeze(2), values, **CLOSE)
        with torchrl.set_recurrent_mode(True):  # the second starts within episodes
            replayed = actor.get_dist(second.clone()).logits
        expected = torch.distributions.Categorical(logits=logits[:, 20:]).logits
        torch.testing.assert_close(replayed, expected, **CLOSE)
        # what comes next within an episode has the value that it has a step later
        goes_on = ~data["next", "done"].squeeze(2)[:, :-1]
        after = torch.zeros_like(values)
        after[:, :-1] = values[:, 1:]
        following = data["next"].select(*critic.in_keys)
        with torch.no_grad():
            found = critic(following)["state_value"].squeeze(2)
        torch.testing.assert_close(found[:, :-1][goes_on], after[:, :-1][goes_on], **CLOSE)
        residual = data["next", "reward"].squeeze(2) + 0.9 * found * ~data[
            "next", "terminated"
        ].squeeze(2)
        last = second["advantage"][:, -1, 0]
        torch.testing.assert_close(last, (residual - values)[:, -1], **CLOSE)

    def test_it_learns(self, torchrl: ModuleType) -> None:
        assert torchrl.train(steps=64 * 8 * 2) > 0.2


class TestCleanRL:
    @pytest.fixture
    def cleanrl(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        return recipe("cleanrl_ppo_stpn", monkeypatch)

    def test_acting_and_replay_are_those_of_our_agent(
        self, cleanrl: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stpn, "build", lambda *a, **k: build(*a, **k, **OPTIONS))
        args = cleanrl.Args(num_envs=3, num_steps=20, hidden_size=7)
        player, agent = cleanrl.make(args)
        monkeypatch.undo()
        strong(agent)
        rollouts = [player.rollout(20)[0] for _ in range(2)]
        names = ("obs", "dones", "actions", "logprobs", "values")
        seen, begins, actions, logs, values = (
            torch.cat([getattr(rollout, name) for rollout in rollouts]).transpose(0, 1)
            for name in names
        )
        assert begins[:, 1:].sum() > 10
        # a cue stands exactly where an episode begins
        assert begins.equal(seen.any(dim=2))
        logits, expected = lived(our_agent(agent.core, agent.actor, agent.critic), seen, begins)
        torch.testing.assert_close(values, expected, **CLOSE)
        torch.testing.assert_close(logs, log_probs(logits, actions), **CLOSE)
        for rollout in rollouts:  # the second one starts within episodes
            policy, again = agent.replay(rollout.obs, rollout.state, rollout.dones)
            torch.testing.assert_close(again, rollout.values, **CLOSE)
            torch.testing.assert_close(policy.log_prob(rollout.actions), rollout.logprobs, **CLOSE)

    def test_its_advantages_are_those_of_the_package(self, cleanrl: ModuleType) -> None:
        from stpn.training.returns import generalised_advantages

        args = cleanrl.Args(num_envs=3, num_steps=20, hidden_size=7)
        player, _ = cleanrl.make(args)
        rollout, ahead = player.rollout(20)
        found = cleanrl.advantages(rollout, ahead, player.done, args)
        ended = torch.cat([rollout.dones[1:], player.done[None]])
        bootstrap = torch.zeros_like(rollout.values)
        bootstrap[-1] = torch.where(player.done, 0, ahead)
        parts = (rollout.rewards, rollout.values, ended, bootstrap)
        expected = generalised_advantages(
            *(part.t().numpy() for part in parts), discount=args.gamma, smoothing=args.gae_lambda
        )
        torch.testing.assert_close(found.t(), torch.as_tensor(expected), **CLOSE)

    def test_it_learns(self, cleanrl: ModuleType) -> None:
        assert cleanrl.main(cleanrl.Args(total_timesteps=8 * 64 * 12)) > 0.6


class TestLightning:
    @pytest.fixture
    def lightning(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        pytest.importorskip("lightning.pytorch")
        return recipe("lightning_stream", monkeypatch)

    def test_pieces_go_on_from_each_other(self, lightning: ModuleType) -> None:
        module = lightning.Streaming(hidden_size=7)
        strong(module.core)
        pieces = list(lightning.Pieces(3, 50, 8))
        found = torch.cat([module(x, begins) for x, _, begins in pieces], dim=1)
        x, _, begins = lightning.recall.stream(3, 50, torch.Generator().manual_seed(0))
        assert begins[:, 1:].sum() > 10
        y, _ = module.core(x, reset=begins)
        torch.testing.assert_close(found, module.readout(y), **CLOSE)
        # gradients end with the piece
        first, second = (torch.randn(3, 5, 4, requires_grad=True) for _ in range(2))
        module(first)
        module(second).sum().backward()
        assert first.grad is None
        assert second.grad is not None

    @pytest.mark.filterwarnings("ignore")  # of Lightning: on loaders, loggers and its own calls
    def test_a_resumed_training_ends_like_one_that_was_not_stopped(
        self, lightning: ModuleType, tmp_path: Path
    ) -> None:
        quiet = {
            "accelerator": "cpu",
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
        }

        def trained(steps: int, resume: Path | None = None) -> Any:
            torch.manual_seed(1)
            trainer = lightning.pl.Trainer(max_steps=steps, max_epochs=10, **quiet)
            model = lightning.Streaming(hidden_size=7)
            trainer.fit(model, lightning.Pieces(3, 60, 10), ckpt_path=resume)
            return trainer, model

        _, whole = trained(16)
        trainer, _ = trained(8)  # within the second epoch of six pieces
        trainer.save_checkpoint(tmp_path / "stopped.ckpt")
        _, resumed = trained(16, tmp_path / "stopped.ckpt")
        for name, value in whole.state_dict().items():
            torch.testing.assert_close(resumed.state_dict()[name], value, **CLOSE)
        torch.testing.assert_close(resumed.stream.state, whole.stream.state, **CLOSE)
