"""`stpn export RUNS RESULTS`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from stpn.cli._format import counted
from stpn.errors import RunError, StpnError
from stpn.results import export, export_path, keep, load_results, result_of
from stpn.runs import Run, find


@dataclass(frozen=True)
class Export:
    """Write runs as small files RESULTS/<task>/<model>/seed<N>.json, their curves thinned."""

    runs: Annotated[Path, tyro.conf.Positional]
    """Root of run directories, or one of them."""
    results: Annotated[Path, tyro.conf.Positional] = Path("results")
    """Where the files go."""
    networks: Path | None = None
    """Also write the best finished network of each task and model, of all seeds in RESULTS, into
    this directory, with its card. The package ships those in src/stpn/data/networks."""
    checkpoints: bool = False
    """Also keep what `stpn resume` needs of each run, in RESULTS/<task>/<model>/seed<N>/."""
    unfinished: bool = False
    """Also runs that have not finished; their files say so."""
    json: bool = False
    """Print JSON."""


def run(arguments: list[str]) -> int:
    options = tyro.cli(Export, args=arguments, prog="stpn export")
    if not options.runs.exists():
        raise RunError(f"{options.runs} does not exist")
    skipped: list[str] = []
    problems: list[str] = []
    exported: dict[Path, Run] = {}
    chosen, doubles = _chosen(options, skipped, problems)
    for found in chosen:
        try:
            exported[export(found, options.results)] = found
            if options.checkpoints:
                keep(found, options.results)
        except RunError as error:
            problems.append(str(error))
    networks, large = _ship(exported, options, problems)
    if options.json:
        content = {"written": [*map(str, exported)], "networks": networks, "too_large": large}
        left_out = {"unfinished": skipped, "doubles": [*map(str, doubles)]}
        print(json.dumps({**content, **left_out, "problems": problems}))
        return 1 if problems else 0
    print(f"{counted(len(exported), 'run')} written below {options.results}")
    if networks:
        print(f"networks in {options.networks}: {', '.join(networks)}")
    for sentence in large:
        print(f"not shipped: {sentence}")
    for path in skipped:
        print(f"unfinished, left out: {path}")
    for double, used in doubles.items():
        print(f"left out: {double}, the same task, model and seed as {used}, which went further")
    for problem in problems:
        print(f"problem: {problem}")
    return 1 if problems else 0


def _chosen(
    options: Export, skipped: list[str], problems: list[str]
) -> tuple[list[Run], dict[Path, Path]]:
    """The runs to write, one a file; and those that would go into the file of a better one.

    Better: finished, then longer, then the first by name.
    """
    by_file: dict[Path, list[tuple[bool, int, Run]]] = {}
    for found in find(options.runs):
        try:
            if found.status != "finished" and not options.unfinished:
                skipped.append(str(found.path))
                continue
            summary = result_of(found).summary
            rank = (not summary.finished, -summary.done, found)
            by_file.setdefault(export_path(found, options.results), []).append(rank)
        except StpnError as error:
            problems.append(str(error))
    chosen, doubles = [], {}
    for candidates in by_file.values():
        best, *others = (run for *_, run in sorted(candidates, key=lambda rank: rank[:2]))
        chosen.append(best)
        doubles.update({run.path: best.path for run in others})
    return chosen, doubles


def _ship(
    runs: dict[Path, Run], options: Export, problems: list[str]
) -> tuple[list[str], list[str]]:
    """Names of the networks that are there now, and a sentence for each that is too large.

    `runs` by the file that each was exported to. The best is that of all results beside them: the
    run of another seed may be gone while its result stayed.
    """
    directory = options.networks
    if directory is None:
        return [], []
    from stpn import experiments, zoo

    models = {path.parent for path in runs}
    results = [result for model in sorted(models) for result in load_results(model, problems)]
    names: list[str] = []
    # a network of another environment has no name on the shelf
    large = [
        f"{result.path}, which is of no task of the paper; `stpn.load` reads the run itself"
        for result in results
        if not experiments.get(result.task).models
    ]
    for chosen, of in zoo.best(results):
        name = f"{chosen.task}-{chosen.model}"
        try:
            if chosen.path in runs:
                zoo.ship(runs[chosen.path], of, directory)
            elif not zoo.confirm(chosen, of, directory):
                problems.append(f"{name}: the best result is {chosen.path}, whose run is not here")
                continue
            names.append(name)
        except zoo.TooLarge as error:
            large.append(str(error))
        except StpnError as error:
            problems.append(str(error))
    return names, large
