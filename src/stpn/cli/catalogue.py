"""`stpn list`: what there is to train, and what has been trained."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from stpn import cores, experiments, paper
from stpn.cli._format import number, share
from stpn.results import load_results
from stpn.runs import find
from stpn.training import algorithms
from stpn.zoo import Card, pretrained


@dataclass(frozen=True)
class Catalogue:
    """Tasks, models, the paper's experiments, trained networks; with --runs, what lies on disk."""

    runs: Path | None = None
    """List the runs below this directory instead."""
    json: bool = False
    """Print JSON."""


def run(arguments: list[str]) -> int:
    options = tyro.cli(Catalogue, args=arguments, prog="stpn list")
    if options.runs is not None:
        return _list_runs(options.runs, options.json)
    if options.json:
        networks = [dataclasses.asdict(card) for card in pretrained.cards()]
        content = {
            "models": _models(),
            "controls": _controls(),
            "tasks": _tasks(),
            "networks": networks,
        }
        print(json.dumps(content))
        return 0
    console = Console()
    models = Table(title="Models", title_justify="left", box=None, pad_edge=False)
    models.add_column("model", style="bold")
    models.add_column("")
    for name, text in _models().items():
        models.add_row(name, text)
    console.print(models)
    controls = Table(title="\nControls: models with other options", title_justify="left", box=None,
                     pad_edge=False)  # fmt: skip
    controls.add_column("model", style="bold")
    controls.add_column("")
    for name, text in _controls().items():
        controls.add_row(name, text)
    console.print(controls)
    console.print("\nExperiments of the paper (stpn train TASK --model MODEL)", highlight=False)
    for task in experiments.TASKS.values():
        if not task.hidden_sizes:
            continue
        length = f"{task.length:,} {task.unit}s, {task.seeds} seeds"
        console.print(f"\n[bold]{task.name}[/]  {task.title}: {length}", highlight=False)
        console.print(_experiment(task))
    others = [task for task in experiments.TASKS.values() if not task.hidden_sizes]
    console.print("\nOther tasks, and algorithms of reinforcement learning", highlight=False)
    for task in others:
        console.print(f"[bold]{task.name}[/]  {task.title}", highlight=False)
    console.print(f"[bold]--algo[/]  {', '.join(algorithms.names())}", highlight=False)
    if cards := pretrained.cards():
        console.print(
            '\nTrained networks in the package, best seed of each (stpn.pretrained("NAME"))',
            highlight=False,
        )
        console.print(_networks(cards))
    return 0


def _experiment(task: experiments.Experiment) -> Table:
    """One task with the paper's models, their sizes and numbers."""
    table = Table(box=None, pad_edge=False)
    table.add_column("model", min_width=16, no_wrap=True)
    for name in ("hidden", task.metric.replace("_", " "), "power"):
        table.add_column(name, justify="right", min_width=14, no_wrap=True)
    for model, size in task.hidden_sizes.items():
        theirs = (paper.number(task.name, model, metric) for metric in (task.metric, "power"))
        table.add_row(model, str(size), *(str(row or "-") for row in theirs))
    return table


def _networks(cards: list[Card]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("seed", justify="right")
    table.add_column("proficiency", justify="right", min_width=14, no_wrap=True)
    table.add_column("power", justify="right", min_width=14, no_wrap=True)
    for card in cards:
        table.add_row(
            card.name,
            str(card.seed),
            number(card.proficiency, card.metric),
            number(card.power, "power"),
        )
    return table


def _models() -> dict[str, str]:
    return {name: cores.get(name).description for name in cores.names()}


def _controls() -> dict[str, str]:
    return {name: cores.get(name).description for name in cores.variants()}


def _tasks() -> dict[str, object]:
    return {
        task.name: {
            "title": task.title,
            "unit": task.unit,
            "metric": task.metric,
            "length": task.length,
            "seeds": task.seeds,
            "hidden_sizes": dict(task.hidden_sizes),
            "paper": [row._asdict() for row in paper.numbers() if row.task == task.name],
        }
        for task in experiments.TASKS.values()
    }


def _list_runs(root: Path, as_json: bool) -> int:
    problems: list[str] = []
    results = load_results(root, problems)
    status = {run.path: run.status for run in find(root)}
    if as_json:
        content = [
            {
                "path": str(r.path),
                "status": status.get(r.path, "exported"),
                "asked": r.asked,
                **r.summary.to_dict(),
            }
            for r in results
        ]
        print(json.dumps({"runs": content, "problems": problems}))
        return 0
    table = Table(box=None, pad_edge=False)
    for name in ("run", "status", "done", "of the paper's", "proficiency", "power"):
        justify: JustifyMethod = "left" if name in ("run", "status") else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    for result in results:
        summary = result.summary
        done = f"{summary.done:,}" if result.asked is None else f"{summary.done:,}/{result.asked:,}"
        table.add_row(
            escape(str(result.path)),
            status.get(result.path, "exported"),
            f"{done} {summary.unit}s",
            share(summary.share_of_paper) if summary.paper_length else "-",
            number(summary.proficiency, summary.metric),
            number(summary.power, "power"),
        )
    # as wide as it needs to be: a path that is cut cannot be copied
    needed = Console(width=10_000).measure(table).maximum
    console = Console(width=max(Console().width, needed))
    console.print(table, soft_wrap=True)
    for problem in problems:
        console.print(problem, style="red", highlight=False, markup=False, soft_wrap=True)
    if not results and not problems:
        print(f"no runs below {root}")
    return 0
