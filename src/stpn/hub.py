"""A trained network as a directory for a model hub such as Hugging Face's.

    stpn.hub.publish("art-stpnr", "hub")                  # hub/art-stpnr: a network of the package
    stpn.hub.publish("runs/art/stpnr/seed0", "hub")       # or that of a run
    network = stpn.load("hub/art-stpnr")                  # the same network, bit for bit

Three files: config.json (`stpn.zoo.Card`), model.safetensors, and README.md, the model card, whose
front matter is what the Hub reads. Nothing is sent anywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stpn import cores, experiments, paper, zoo
from stpn._files import write_atomic
from stpn.errors import CheckpointError, ConfigError, RunError, StpnError
from stpn.runs import Run, is_published, place_of

if TYPE_CHECKING:
    from torch import nn

OURS = "mit"  # the license of the package, and of the networks in it
METRICS = {"test_accuracy": "accuracy", "accuracy": "accuracy", "reward": "mean_reward"}
"""What the Hub calls the measures of tasks."""


def publish(
    source: str | Path,
    root: str | Path,
    *,
    license: str | None = None,
    env: str | None = None,
) -> Path:
    """Write a network of the package, or of a finished run, as the directory `root`/NAME.

    `license` of a run, which is yours to choose: an identifier of the Hub (apache-2.0, cc-by-4.0);
    networks of the package have that of the package. The directory is read again before this
    returns.
    """
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]{0,40}", license):
        raise ConfigError(f"license must be an identifier such as mit or cc-by-4.0: {license!r}")
    if zoo.is_shipped(source):
        card, content = zoo.pretrained.card(str(source)), zoo.pretrained.content(str(source))
        network, license = zoo.pretrained(str(source)), OURS
    elif is_published(source):
        raise RunError(f"{source} is such a directory already")
    else:
        run, network = Run.open(source), zoo.load(source, env=env)
        name = "-".join(place_of(run.config).parts)
        card, content = zoo.described(run, name, "the run that was exported")
    made = zoo.Published(Path(root) / card.name)
    if Run(made.directory).exists and not _is_of(made, card):
        raise RunError(
            f"{made.directory} holds a run or another network, nothing was changed; delete it or "
            "choose another --out"
        )
    made.write(card, content)
    write_atomic(made.directory / "README.md", model_card(card, license=license).encode())
    _read_again(made, network, env)
    return made.directory


def _is_of(made: zoo.Published, card: zoo.Card) -> bool:
    try:
        return is_published(made.directory) and made.card.sha256 == card.sha256
    except StpnError:
        return False


def _read_again(made: zoo.Published, network: nn.Module, env: str | None) -> None:
    """CheckpointError unless it gives the network that it was made of."""
    import torch

    found = made.load(env=env).state_dict()
    for name, value in network.state_dict().items():
        ours, theirs = (tensor.reshape(-1).view(torch.uint8) for tensor in (found[name], value))
        if not torch.equal(ours, theirs):
            raise CheckpointError(f"{made.directory}: {name} is not that of the network; try again")


def model_card(card: zoo.Card, *, license: str | None = None) -> str:
    """README.md of a network: front matter for the Hub, then what people should know."""
    parts = [
        "\n".join(["---", *_front_matter(card, license), "---"]),
        f"# {card.name}",
        f"{cores.get(card.model).description}; {card.hidden_size} hidden units, "
        f"{card.parameters:,} parameters. Task: {_task(card)}. Made with `stpn`, Short-Term "
        "Plasticity Neurons for PyTorch.",
        "## Results",
        "\n".join(_table(card)),
        _about_figures(card),
        "## How to load it",
        _loading(card),
        "## Training",
        f"```sh\n{card.command}\n```",
        f"{_length(card)}, seed {card.seed}. "
        f"{', '.join(f'{name} {number}' for name, number in card.versions.items())}; commit "
        f"{card.commit or 'unknown'}. All settings are in `config.json`.",
        "## Limits",
        "\n".join(f"- {limit}" for limit in _limits(card)),
        "## Citation",
        "The package implements this paper; this network is not by its authors.",
        f"```bibtex\n{CITATION}\n```",
    ]
    return "\n\n".join(parts) + "\n"


CITATION = """\
@inproceedings{garciarodriguez2022stpn,
  title     = {Short-Term Plasticity Neurons Learning to Learn and Forget},
  author    = {Garcia Rodriguez, Hector and Guo, Qinghai and Moraitis, Timoleon},
  booktitle = {Proceedings of the 39th International Conference on Machine Learning},
  series    = {Proceedings of Machine Learning Research},
  volume    = {162},
  pages     = {18704--18722},
  year      = {2022},
  url       = {https://proceedings.mlr.press/v162/rodriguez22b.html}
}"""


def _front_matter(card: zoo.Card, license: str | None) -> Iterator[str]:
    """YAML; text as JSON has it, which YAML reads the same."""
    agent = card.metric == "reward"
    if license is not None:
        yield f"license: {license}"
    yield f"library_name: {zoo.Published.LIBRARY}"
    if agent:
        yield "pipeline_tag: reinforcement-learning"
    yield "tags:"
    tags = {
        "stpn": True,
        "pytorch": True,
        "recurrent-neural-network": True,
        "short-term-plasticity": card.model in cores.STPN,
        "reinforcement-learning": agent,
        _dataset(card): True,
        card.model: True,
    }
    for tag in (tag for tag, fitting in tags.items() if fitting):
        yield f"- {json.dumps(tag)}"
    yield "metrics:"
    yield f"- {METRICS.get(card.metric, card.metric)}"
    yield "model-index:"
    yield f"- name: {json.dumps(card.name)}"
    yield "  results:"
    yield "  - task:"
    yield f"      type: {'reinforcement-learning' if agent else 'sequence-classification'}"
    yield "    dataset:"
    yield f"      type: {json.dumps(_dataset(card))}"
    yield f"      name: {json.dumps(_task(card))}"
    yield "    metrics:"
    for what, value, theirs in _figures(card):
        kind = "power" if what == "power" else METRICS.get(card.metric, card.metric)
        name = what if theirs is None else f"{what} (the paper's: {theirs})"
        yield f"    - type: {kind}"
        yield f"      value: {value!r}"
        yield f"      name: {json.dumps(name, ensure_ascii=False)}"


def _figures(card: zoo.Card) -> Iterator[tuple[str, float, str | None]]:
    """Name, ours, and the paper's where it has one."""
    unit = ", %" if "accuracy" in card.metric else ""
    named = {"proficiency": card.metric.replace("_", " ") + unit, "power": "power"}
    for key, name in named.items():
        theirs = (card.paper or {}).get(key)
        text = None if theirs is None else paper.spread_text(theirs, name)
        yield name, getattr(card, key), text


def _table(card: zoo.Card) -> Iterator[str]:
    compared = card.paper is not None
    yield "| | this network |" + " the paper |" * compared
    yield "|---|---|" + "---|" * compared
    for name, value, theirs in _figures(card):
        yield f"| {name} | {value:.4g} |" + f" {theirs or '-'} |" * compared


def _about_figures(card: zoo.Card) -> str:
    chosen = f"This network is of seed {card.seed}: {card.chosen}."
    if card.paper:
        seeds = experiments.get(card.task).seeds
        chosen += f" The paper's numbers are mean and standard deviation of {seeds} seeds."
    return (
        f"{chosen} Power is the paper's measure for analog synapses, the sum of u²·|g|, without a "
        f"unit. `stpn eval {card.name}` beside this directory measures both again."
    )


def _loading(card: zoo.Card) -> str:
    # an environment of a module is imported, which the reader must ask for
    env = f', env="{_dataset(card)}"' if ":" in _dataset(card) else ""
    load = f'network = stpn.load("{card.name}"{env})  # this directory, downloaded'
    if card.metric == "reward":
        lines = [
            "import stpn",
            "",
            load,
            "observation = network.encoder.random(1)  # of the right shape, to try it with",
            "heads, state = network.step(observation)  # parameters of the policy, then the value",
            "heads, state = network.step(observation, state)",
        ]
    else:
        lines = [
            "import torch, stpn",
            "",
            load,
            "x = torch.randn(1, 10, network.core.input_size)  # batch, time, inputs",
            "logits = network(x)",
        ]
    code = "\n".join(lines)
    return (
        f"`hf download USER/{card.name} --local-dir {card.name}` brings the directory; `stpn.load` "
        "itself downloads nothing, executes nothing of it, and checks the weights by their "
        "SHA-256. It is of the package `stpn-torch`, which is installed from its repository (`pip "
        f"install stpn` brings an unrelated one).\n\n```python\n{code}\n```"
    )


def _limits(card: zoo.Card) -> Iterator[str]:
    yield (
        "A small network for research on short-term plasticity. It does the one task that it was "
        "trained on, with inputs as that task makes them."
    )
    if "highest" in card.chosen:
        yield (
            f"It is {card.chosen}: another training may be expected to reach less, and it does "
            "not compare with a mean."
        )
    else:
        yield "Its numbers are those of one seed; another may reach others."
    if card.done < card.paper_length:
        yield f"{_length(card)}: it was trained for less than the paper's networks."
    yield (
        "Power is what a model of ideal synapses draws; converters, writing and faults of a device "
        "are not in it."
    )


def _length(card: zoo.Card) -> str:
    length = f"{card.done:,} {card.unit}s"
    if card.paper_length and card.done != card.paper_length:
        length += f" (the paper: {card.paper_length:,})"
    return length


def _dataset(card: zoo.Card) -> str:
    return str(card.config.get("env") or card.task)


def _task(card: zoo.Card) -> str:
    return str(card.config.get("env") or experiments.get(card.task).title)
