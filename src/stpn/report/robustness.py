"""Tables and the figure of the study of faults (`stpn analog study`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stpn._extras import need
from stpn._files import around, explain_os_errors, write_atomic
from stpn.errors import RunError
from stpn.report.style import model_style, task_style
from stpn.robustness import FAULTS, read_study

BEGIN, END = "<!-- study -->", "<!-- /study -->"


def tables(out: Path) -> str:
    """One table for each task: mean and deviation over draws of devices, by fault and model."""
    networks = _measured(out)
    parts = []
    for task in dict.fromkeys(content["task"] for content in networks.values()):
        own = [content for content in networks.values() if content["task"] == task]
        head = ["fault", "size", *(model_style(content["model"]).name for content in own)]
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for key, title in _keys(own):
            if any(key in content["cells"] for content in own):
                cells = (_cell(content["cells"].get(key), task) for content in own)
                lines.append("| " + " | ".join([*title, *cells]) + " |")
        plan = own[0]["plan"]
        counted = ("sequences", "episodes")[task_style(task).reinforcement]
        many = f"{plan[counted]:,} {counted}"
        metric = task_style(task).proficiency
        parts.append(
            f"**{task_style(task).short}**, {metric}, mean ± deviation over {plan['draws']} draws "
            f"of devices, {many} each:\n\n" + "\n".join(lines)
        )
    return "\n\n".join(parts)


def _measured(out: Path) -> dict[str, dict[str, Any]]:
    networks = read_study(out)
    if not networks:
        raise RunError(f"there is no study in {out}: `stpn analog study --out {out}` makes one")
    return networks


def _keys(networks: list[dict[str, Any]]) -> list[tuple[str, tuple[str, str]]]:
    """Keys of cells in the order of the faults, each with its title."""
    found = []
    for end, words in (("", ""), ("/tuned", ", fine-tuned")):
        for fault in FAULTS.values():
            for size in fault.sizes:
                title = (f"{fault.text}{words}", "" if fault.sizes == (0.0,) else f"{size:g}")
                found.append((f"{fault.name}/{size:g}{end}", title))
    return found


def _cell(cell: dict[str, Any] | None, task: str) -> str:
    if cell is None:
        return ""
    values = np.array(cell["proficiency"])
    if len(values) == 1 or values.std() == 0:  # without anything that is drawn
        return f"{values[0]:.1f}"
    return f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"


def draw_study(out: Path) -> Any:
    """What is left of the proficiency, one panel for each task: a row a fault, a mark a model."""
    need("matplotlib", extra="report")
    from matplotlib.figure import Figure

    networks = _measured(out)
    tasks = list(dict.fromkeys(content["task"] for content in networks.values()))
    figure = Figure(figsize=(4.2 * len(tasks) + 1.6, 5.2), layout="constrained")
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    rows = [fault for fault in FAULTS.values() if fault.name != "none"]
    for axes, task in zip(panels, tasks, strict=True):
        own = [content for content in networks.values() if content["task"] == task]
        for content in own:
            style = model_style(content["model"])
            clean = content["cells"].get("none/0")
            if clean is None:
                continue
            points = []
            for row, fault in enumerate(rows):
                cell = content["cells"].get(f"{fault.name}/{fault.sizes[-1]:g}")
                if cell is not None:
                    points.append((np.mean(cell["proficiency"]) / clean["proficiency"][0], row))
            if points:
                axes.plot(
                    *zip(*points, strict=True), style.marker, color=style.colour, label=style.name,
                    alpha=0.85,
                )  # fmt: skip
        axes.axvline(1.0, color="#767676", linewidth=0.8)
        axes.set(title=task_style(task).short, xlabel="share of proficiency that is left")
        axes.set_yticks(range(len(rows)), [f"{f.text} ({f.sizes[-1]:g})" for f in rows])
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)
    panels[0].invert_yaxis()
    return figure


def write_docs(out: Path, docs: Path) -> list[Path]:
    """Fill the tables of docs/analog.md, and draw its figure."""
    from stpn.report import figures

    page = docs / "analog.md"
    with explain_os_errors(f"read {page}"):
        text = page.read_text(encoding="utf-8")
    before, after = around(text, BEGIN, END, page)
    write_atomic(page, f"{before}\n{tables(out)}\n{after}".encode())
    words = "Share of proficiency that is left on devices with faults, by fault and model."
    stem = docs / "figures" / "analog-faults"
    return [page, *figures.save(draw_study(out), stem, "Networks on devices with faults", words)]
