"""What the study of faults says, in sentences that follow from its numbers.

A network is compared with another by the share of its proficiency that it keeps. It keeps more, or
less, if the 95% interval of the difference over draws of devices (Welch) leaves out zero and the
difference is more than 5% of a proficiency; the same, if the interval is narrow enough to say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stpn import experiments
from stpn.energy import Balance, Energy, Terms, balance, profile
from stpn.energy.terms import joules
from stpn.report.comparison import Outcome, compare
from stpn.report.statistics import Spread
from stpn.report.style import model_style, task_style
from stpn.robustness import FAULTS, Fault
from stpn.robustness import networks as shipped

Network = dict[str, Any]  # as `stpn.robustness.read_study` gives it

NEGLIGIBLE = 0.05
OURS, THEIRS = "stpnr", "lstm"
OF_W = ("programming", "drift", "stuck", "w_bits", "converters", "read_noise")
OF_F = ("f_bits", "rates", "update_noise", "asymmetry")
WHOLE = ("pcm", "reram")
RULE = (
    "More or less: by more than 5% of a network's proficiency on perfect devices, where the 95% "
    "interval over draws of devices (Welch) leaves out zero. It says nothing of other trainings: "
    "there is one trained network of each model."
)


def values(cell: dict[str, Any]) -> list[float]:
    return [float(value) for value in cell["proficiency"]]


def mean(cell: dict[str, Any]) -> float:
    return sum(values(cell)) / len(cell["proficiency"])


def kept(network: Network, key: str) -> Spread | None:
    """The share of proficiency that is left; a single value has nothing that is drawn."""
    clean, cell = network["cells"].get("none/0"), network["cells"].get(key)
    if clean is None or cell is None or not mean(clean):
        return None
    shares = [value / mean(clean) for value in values(cell)]
    centre = sum(shares) / len(shares)
    if len(shares) == 1:
        return Spread(centre, 0.0, 2)
    squares = sum((share - centre) ** 2 for share in shares)
    return Spread(centre, (squares / (len(shares) - 1)) ** 0.5, len(shares))


def against(ours: Network, theirs: Network, key: str) -> Outcome | None:
    """Whether `ours` keeps more than `theirs`; None: one of them was not measured."""
    a, b = kept(ours, key), kept(theirs, key)
    return None if a is None or b is None else compare(a, b, negligible=NEGLIGIBLE)


def measured(network: Network, fault: Fault, *, tuned: bool = False) -> list[tuple[str, float]]:
    """Keys and sizes of a fault that were measured."""
    keys = [(f"{fault.name}/{size:g}" + "/tuned" * tuned, size) for size in fault.sizes]
    return [(key, size) for key, size in keys if key in network["cells"]]


def answer(networks: Iterable[Network]) -> str:
    """Both questions of the study, answered, as Markdown."""
    networks = list(networks)
    lines = ["**Does short-term plasticity make networks more or less robust?**", ""]
    for task in dict.fromkeys(network["task"] for network in networks):
        lines += _of_task([network for network in networks if network["task"] == task], task)
    lines += [f"- {line}" for line in _tuning(networks)]
    missing = [name for name in shipped() if name not in {n.get("network") for n in networks}]
    if missing:
        lines.append(f"- Networks of the package that were not measured: {', '.join(missing)}.")
    lines += ["", RULE, "", "**At which write energy does the paper's claim hold?**", ""]
    lines += [f"- {line}" for line in _writing(networks)]
    return "\n".join(lines)


def _of_task(networks: list[Network], task: str) -> list[str]:
    by_model = {network["model"]: network for network in networks}
    ours, theirs = by_model.get(OURS), by_model.get(THEIRS)
    if ours is None or theirs is None:
        return []
    title, names = experiments.get(task).title, (_name(ours), _name(theirs))
    found = []
    for group, words in ((OF_W, "faults of W and of reading"), (WHOLE, "whole profiles")):
        outcomes = _outcomes(ours, theirs, group)
        if outcomes:
            found.append(f"to {words} {_degree(outcomes.values())}: {_counts(outcomes)}")
    lines = [f"- *{title}*, {names[0]} beside {names[1]}: {'; '.join(found)}."] if found else []
    if both := _both(ours, theirs):
        lines.append(f"- *{title}*, what that is in {task_style(task).proficiency}: {both}.")
    costs = [_cost(ours, fault) for name in OF_F for fault in [FAULTS[name]]]
    if any(costs):
        lines.append(
            f"- *{title}*, faults of F, which {names[1]} does not have: {names[0]} keeps "
            f"{'; '.join(filter(None, costs))}."
        )
    others = [_larger(n) for n in networks if n["model"] not in (OURS, THEIRS) and _plastic(n)]
    if others:
        faults = ", ".join(FAULTS[name].text for name in OF_F)
        lines.append(
            f"- *{title}*, what other plastic networks keep of the same faults at their larger "
            f"size ({faults}): {'; '.join(others)}."
        )
    return lines


def _plastic(network: Network) -> bool:
    """Whether faults of F make a difference at all."""
    clean = network["cells"].get("none/0")
    keys = (f"{name}/{FAULTS[name].sizes[-1]:g}" for name in OF_F)
    cells = [network["cells"].get(key) for key in keys]
    return clean is not None and any(c and mean(c) != mean(clean) for c in cells)


def _larger(network: Network) -> str:
    shares = (kept(network, f"{name}/{FAULTS[name].sizes[-1]:g}") for name in OF_F)
    return f"{_name(network)} {', '.join(f'{share.mean:.0%}' for share in shares if share)}"


def _both(ours: Network, theirs: Network) -> str:
    """Proficiency on perfect devices and on whole profiles."""
    parts = []
    for name in ("none", *WHOLE):
        for key, size in measured(ours, FAULTS[name]):
            if key in theirs["cells"]:
                numbers = (f"{_name(n)} {mean(n['cells'][key]):.1f}" for n in (ours, theirs))
                words = "perfect devices" if name == "none" else _sized(FAULTS[name], size)
                parts.append(f"{words}: {', '.join(numbers)}")
    return "; ".join(parts)


def _outcomes(ours: Network, theirs: Network, group: Iterable[str]) -> dict[str, Outcome]:
    found = {}
    for name in group:
        for key, size in measured(ours, FAULTS[name]):
            outcome = against(ours, theirs, key)
            if outcome is not None:
                found[_sized(FAULTS[name], size)] = outcome
    return found


def _degree(outcomes: Iterable[Outcome]) -> str:
    outcomes = list(outcomes)
    more, less = outcomes.count("higher"), outcomes.count("lower")
    if not more and not less:
        return "no difference that can be told"
    if not more or not less:
        partly = "in part " * (more + less <= len(outcomes) / 2)
        return f"**{partly}{'more' if more else 'less'} robust**"
    if more == less:
        return "**neither more nor less robust**"
    return "**mostly more robust**" if more > less else "**mostly less robust**"


def _counts(outcomes: dict[str, Outcome]) -> str:
    words: dict[Outcome, str] = {"higher": "more", "lower": "less", "same": "as much"}
    parts = []
    for outcome, word in words.items():
        own = [fault for fault, found in outcomes.items() if found == outcome]
        if own:
            parts.append(f"{word} in {len(own)} ({', '.join(own)})")
    text = f"of {len(outcomes)}, it keeps {', '.join(parts)}" if parts else ""
    unknown = [fault for fault, found in outcomes.items() if found == "inconclusive"]
    if unknown:
        untold = f"{len(unknown)} cannot be told ({', '.join(unknown)})"
        text = f"{text}, and {untold}" if text else f"all {untold}"
    return text


def _cost(network: Network, fault: Fault) -> str:
    parts = []
    for key, size in measured(network, fault):
        share = kept(network, key)
        if share is not None:
            parts.append(f"{share.mean:.0%} at {size:g}")
    return f"{', '.join(parts)} ({fault.text})" if parts else ""


def _sized(fault: Fault, size: float) -> str:
    return f"{fault.name.replace('_', ' ')} {fault.label(size)}".strip()


def _tuning(networks: list[Network]) -> list[str]:
    lines = []
    for task in dict.fromkeys(network["task"] for network in networks):
        own = [network for network in networks if network["task"] == task]
        gains = [gain for network in own for gain in [_gain(network)] if gain]
        title = experiments.get(task).title
        if gains:
            lines.append(
                f"*{title}*, hardware-aware fine-tuning on `pcm`, points on `pcm` and on perfect "
                f"devices: {'; '.join(gains)}."
            )
        else:
            lines.append(f"*{title}*: no fine-tuning was measured.")
    return lines


def _gain(network: Network) -> str:
    cells = network["cells"]
    if not {"pcm/0", "pcm/0/tuned", "none/0", "none/0/tuned"} <= cells.keys():
        return ""
    ours, clean = (mean(cells[f"{k}/tuned"]) - mean(cells[k]) for k in ("pcm/0", "none/0"))
    before, after = (kept(network, key) for key in ("pcm/0", "pcm/0/tuned"))
    assert before is not None
    assert after is not None
    told = compare(after, before, negligible=0.0) in ("higher", "lower")
    return f"{_name(network)} {ours:+.1f}{'' if told else ' (cannot be told)'} and {clean:+.1f}"


def energy_of(network: Network) -> Energy | None:
    """On `pcm` and perfect cells; None: a study before energies were kept."""
    cell = network["cells"].get("none/0", {})
    if "energy" not in cell:
        return None
    kept_terms = dict(cell["energy"])
    writes, normalised = kept_terms.pop("writes"), kept_terms.pop("normalised")
    return Energy(profile("pcm"), {"core": Terms(**kept_terms)}, writes, normalised)


def balances(networks: list[Network]) -> dict[str, Balance]:
    """By task: the STPN and its baseline."""
    found = {}
    for task in dict.fromkeys(network["task"] for network in networks):
        energies = {
            network["model"]: energy
            for network in networks
            if network["task"] == task and (energy := energy_of(network)) is not None
        }
        if OURS in energies and THEIRS in energies:
            found[task] = balance(energies[OURS], energies[THEIRS])
    return found


def _writing(networks: list[Network]) -> list[str]:
    lines = []
    for task, even in balances(networks).items():
        ours, theirs = model_style(OURS).name, model_style(THEIRS).name
        line = f"*{experiments.get(task).title}*: {ours} costs less than {theirs} "
        if even.budget is None or even.budget <= 0:
            lines.append(f"{line}at no write energy.")
            continue
        line += (
            f"while writing and normalising one of its {even.first.writes:,.0f} plastic synapses "
            f"cost less than **{joules(even.budget)}** a step together"
        )
        norm = even.first.device.norm
        if even.write is None:
            line += (
                f". A digital norm takes {joules(norm)}, more than that: with it there is no write "
                "energy at which the claim holds; with a norm that comes free it is all for writes"
            )
        else:
            line += f": below {joules(even.write)} for the write, after {joules(norm)} for the norm"
        lines.append(f"{line}.")
    for task in dict.fromkeys(network["task"] for network in networks):
        change = _power_change([n for n in networks if n["task"] == task])
        if change:
            lines.append(f"*{task_style(task).short}*: {change}.")
    return lines


def _power_change(networks: list[Network]) -> str:
    """How far faults move the paper's power and the joules on `pcm`."""
    parts = []
    for network in networks:
        if network["model"] not in (OURS, THEIRS) or "none/0" not in network["cells"]:
            continue
        spans = []
        for quantity in ("power", "joules"):
            clean = network["cells"]["none/0"][quantity]
            base = sum(clean) / len(clean)
            ratios = [
                sum(cell[quantity]) / len(cell[quantity]) / base
                for key, cell in network["cells"].items()
                if not key.endswith("tuned")
            ]
            least, most = (round(end - 1, 2) + 0.0 for end in (min(ratios), max(ratios)))
            spans.append(f"{least:+.0%} to {most:+.0%}" if least or most else "no change")
        parts.append(f"{_name(network)} {spans[0]} ({spans[1]})")
    if not parts:
        return ""
    listed = "; ".join(parts)
    return f"faults change the paper's power, and in brackets the joules on `pcm`, of {listed}"


def _name(network: Network) -> str:
    return model_style(network["model"]).name
