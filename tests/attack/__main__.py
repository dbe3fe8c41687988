"""`python -m tests.attack`: what each attack came to; exit code 1 if a promise was broken."""

from __future__ import annotations

import argparse
import sys

from . import ATTACKS, inside, run
from . import devices as devices  # each module enters its attacks
from . import files as files
from . import kills as kills
from . import layers as layers
from . import operators as operators


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="of each attack")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", default=",".join(ATTACKS), help=f"some of {', '.join(ATTACKS)}")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.only.split(",")
    unknown = [name for name in names if name not in ATTACKS]
    if unknown:
        parser.error(f"--only: expected some of {', '.join(ATTACKS)}, got {', '.join(unknown)}")
    if given.inside:
        inside(names[0], given.cases, given.seed, given.first)
        return 0
    failed = 0
    for name in names:
        report = run(name, cases=given.cases, seed=given.seed, first=given.first)
        print(report, flush=True)
        failed += len(report.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
