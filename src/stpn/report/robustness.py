"""Tables and figures of the study of faults (`stpn analog study`): the report, docs/analog.md.

found = read(Path("results"))        # what results/analog holds; None: no study
tables(found), plot(found), answer(found)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from stpn._extras import need
from stpn._files import around, explain_os_errors, write_atomic
from stpn.energy.terms import TERMS, joules
from stpn.errors import RunError
from stpn.report import faults
from stpn.report.faults import Network
from stpn.report.grid import Quantity
from stpn.report.plots import Curve, Panel, Plot
from stpn.report.statistics import Estimate
from stpn.report.style import model_style, task_style
from stpn.report.tables import Cell, Table
from stpn.report.verdicts import Verdict, number_text
from stpn.robustness import DAY, FAULTS, Fault, read_study

DIRECTORY = "analog"
"""Of the study, beside the runs."""
MARKS = ("break-even", "answer", "study")
PLACES = 1
CAPTION = (
    "One fault at a time on otherwise perfect devices: mean and standard deviation over draws of "
    "devices. Rounding is shown by the step between two levels; of agents the larger size of each "
    "fault was measured."
)


def read(root: Path) -> list[Network] | None:
    """The study beside the runs of a directory, if there is one."""
    out = root / DIRECTORY
    return list(read_study(out).values()) or None if out.is_dir() else None


def measured(out: Path) -> list[Network]:
    """The study in a directory, which must have one."""
    networks = list(read_study(out).values())
    if not networks:
        raise RunError(f"there is no study in {out}: `stpn analog study --out {out}` makes one")
    return networks


def tables(networks: list[Network]) -> list[Table]:
    """Of each task proficiency, then power: a row a fault and its size, a column a model."""
    found = []
    for task in _tasks(networks):
        own = _of(networks, task)
        quantities: tuple[Quantity, ...] = ("proficiency", "power")
        found += [_table(own, task, quantity) for quantity in quantities]
    return found


def _tasks(networks: Iterable[Network]) -> list[str]:
    return list(dict.fromkeys(network["task"] for network in networks))


def _of(networks: list[Network], task: str) -> list[Network]:
    return [network for network in networks if network["task"] == task]


def _table(own: list[Network], task: str, quantity: Quantity) -> Table:
    style = task_style(task)
    counted = ("sequences", "episodes")[style.reinforcement]
    rows = [(f"{counted} in each draw", tuple(_plain(f"{n['plan'][counted]:,}") for n in own))]
    records = []
    for key, title in _keys():
        if not any(key in network["cells"] for network in own):
            continue
        rows.append((title, tuple(_cell(network["cells"].get(key), quantity) for network in own)))
        records += [
            {
                "table": "devices",
                "task": task,
                "model": network["model"],
                "metric": f"{quantity} {key}",
                "mean": float(np.mean(network["cells"][key][quantity])),
                "seeds": len(network["cells"][key][quantity]),
                "values": " ".join(f"{value:g}" for value in network["cells"][key][quantity]),
            }
            for network in own
            if key in network["cells"]
        ]
    what = style.proficiency if quantity == "proficiency" else "power, the paper's measure"
    draws = ", ".join(sorted({str(network["plan"]["draws"]) for network in own}))
    tuned = sorted({_tuning(n) for n in own if any(k.endswith("/tuned") for k in n["cells"])})
    caption = (
        f"{what[0].upper()}{what[1:]}: mean ± standard deviation over {draws} draws of devices; "
        "without a deviation nothing is drawn."
    )
    if tuned:
        caption += f" Fine-tuned on the profile pcm by {' or '.join(tuned)}."
    return Table(
        f"devices-{task}-{quantity}",
        f"{style.short} on devices with faults, {quantity}",
        caption,
        tuple(model_style(network["model"]).name for network in own),
        tuple(rows),
        tuple(records),
        compares=False,
    )


def _tuning(network: Network) -> str:
    plan = network["plan"]
    if task_style(network["task"]).reinforcement:
        return f"{plan['iterations']:,} iterations"
    return f"{plan['tuning']:,} updates"


def _plain(text: str) -> Cell:
    return Cell(text, "", Verdict.UNPAIRED)


def _keys() -> list[tuple[str, str]]:
    """Keys of cells in the order of the faults, each with its title."""
    found = []
    for end, words in (("", ""), ("/tuned", ", fine-tuned")):
        for fault in FAULTS.values():
            for size in fault.sizes:
                title = f"{fault.text} {fault.label(size)}".strip()
                found.append((f"{fault.name}/{size:g}{end}", f"{title}{words}"))
    return found


def _cell(cell: dict[str, Any] | None, quantity: Quantity) -> Cell:
    if cell is None:
        return Cell()
    values = tuple(map(float, cell[quantity]))
    same = len(set(values)) == 1  # nothing that is drawn
    return _plain(number_text(Estimate(values[:1] if same else values), PLACES))


def energy_table(networks: list[Network]) -> str:
    """Joules per step by term, of the networks whose break-even is told, as Markdown."""
    columns = {}
    for task, even in faults.balances(networks).items():
        for model, energy in ((faults.OURS, even.first), (faults.THEIRS, even.second)):
            columns[f"{task_style(task).short} {model_style(model).name}"] = energy
    lines = [f"| per time step, `pcm` | {' | '.join(columns)} |", "|" + "---|" * (1 + len(columns))]
    lines += [
        f"| {term} | {' | '.join(joules(getattr(e.terms, term)) for e in columns.values())} |"
        for term in TERMS
    ]
    lines.append(f"| total | {' | '.join(joules(e.total) for e in columns.values())} |")
    return "\n".join(lines)


# How the size of a fault is shown on an axis, and what it is called there. 0 is a perfect device.
_AXES: dict[str, tuple[str, float]] = {
    "programming": ("in that of PCM", 1.0),
    "drift": ("days", 1 / DAY),
    "stuck": ("% of cells", 100.0),
    "read_noise": ("% of the largest weight", 100.0),
    "rates": ("%", 100.0),
    "update_noise": ("%", 100.0),
    "asymmetry": ("%", 100.0),
}
_TITLES = {
    "programming": "Programming noise",
    "drift": "Drift and 1/f noise",
    "stuck": "Stuck cells",
    "w_bits": "Rounding of W",
    "converters": "Rounding by converters",
    "read_noise": "Noise of reading",
    "f_bits": "Rounding of F",
    "rates": "Spread of lambda, gamma",
    "update_noise": "Noise of updates",
    "asymmetry": "Asymmetry of updates",
}


def _place(fault: Fault, size: float) -> float:
    if fault.name in _AXES:
        return size * _AXES[fault.name][1]
    return 100.0 / (2 ** (size - 1) - 1)  # bits: a step, in percent of the largest


def plots(networks: list[Network], first: int) -> list[Plot]:
    """One figure for each task, numbered from `first`: a panel a fault, a line a model."""
    found: list[Plot] = []
    for task in _tasks(networks):
        own = _of(networks, task)
        panels = [_panel(own, task, FAULTS[name]) for name in _TITLES]
        title = f"{task_style(task).short} on devices with faults"
        found.append(
            Plot(first + len(found), f"devices-{task}", title, CAPTION,
                 tuple(panel for panel in panels if panel.curves), (), (), (), columns=4)
        )  # fmt: skip
    return found


def _panel(own: list[Network], task: str, fault: Fault) -> Panel:
    curves = []
    for network in own:
        cells = network["cells"]
        points = [(0.0, cells["none/0"])] if "none/0" in cells else []
        points += [
            (_place(fault, size), cells[key]) for key, size in faults.measured(network, fault)
        ]
        if len(points) < 2:
            continue
        x = np.array([place for place, _ in points])
        y = np.array([faults.mean(cell) for _, cell in points])
        spread = np.array([Estimate(tuple(faults.values(cell))).std or 0.0 for _, cell in points])
        style = model_style(network["model"])
        curves.append(Curve(network["model"], style.name, x, y, y - spread, y + spread, x[-1]))
    label, _ = _AXES.get(fault.name, ("step, % of the largest", 0.0))
    proficiency = task_style(task).proficiency
    return Panel(task, _TITLES[fault.name], label, proficiency, curves=tuple(curves))


def draw_study(networks: list[Network]) -> Any:
    """What is left of the proficiency, one panel for each task: a row a fault, a mark a model."""
    need("matplotlib", extra="report")
    from matplotlib.figure import Figure

    tasks = _tasks(networks)
    figure = Figure(figsize=(4.2 * len(tasks) + 1.6, 5.2), layout="constrained")
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    rows = [fault for fault in FAULTS.values() if fault.name != "none"]
    for axes, task in zip(panels, tasks, strict=True):
        for content in _of(networks, task):
            style = model_style(content["model"])
            clean = content["cells"].get("none/0")
            if clean is None:
                continue
            points = []
            for row, fault in enumerate(rows):
                cell = content["cells"].get(f"{fault.name}/{fault.sizes[-1]:g}")
                if cell is not None:
                    points.append((faults.mean(cell) / faults.mean(clean), row))
            if points:
                axes.plot(
                    *zip(*points, strict=True), style.marker, color=style.colour, label=style.name,
                    alpha=0.85,
                )  # fmt: skip
        axes.axvline(1.0, color="#767676", linewidth=0.8)
        axes.set(title=task_style(task).short, xlabel="share of proficiency that is left")
        axes.set_yticks(range(len(rows)), [f"{f.text} {f.label(f.sizes[-1])}" for f in rows])
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)
    panels[0].invert_yaxis()
    return figure


def parts(networks: list[Network]) -> dict[str, str]:
    """What stands in docs/analog.md between the marks of each name."""
    tabular = "\n\n".join(
        f"**{table.title}.** {table.caption}\n\n{table.markdown().rstrip()}"
        for table in tables(networks)
    )
    return dict(zip(MARKS, (energy_table(networks), faults.answer(networks), tabular), strict=True))


def write_docs(networks: list[Network], docs: Path) -> list[Path]:
    """Fill the marked parts of docs/analog.md, and draw its figure."""
    from stpn.report import figures

    page = docs / "analog.md"
    with explain_os_errors(f"read {page}"):
        text = page.read_text(encoding="utf-8")
    for name, content in parts(networks).items():
        before, after = around(text, f"<!-- {name} -->", f"<!-- /{name} -->", page)
        text = f"{before}\n{content}\n{after}"
    write_atomic(page, text.encode())
    stem, title = docs / "figures" / "analog-faults", "Networks on devices with faults"
    drawn = figures.save(draw_study(networks), stem, title, description(networks))
    stem.with_suffix(".png").unlink()  # the page shows the other
    return [page, drawn[0]]


def description(networks: list[Network]) -> str:
    """The words inside the picture's file, with a digest of what it shows."""
    cells = [network["cells"] for network in networks]
    digest = hashlib.sha256(json.dumps(cells, sort_keys=True).encode()).hexdigest()[:12]
    words = "Share of proficiency that is left on devices with faults, by fault and model."
    return f"{words} Data: {digest}."
