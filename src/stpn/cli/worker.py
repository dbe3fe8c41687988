"""A worker of a sweep: one job as JSON on standard input, events as JSON lines on output."""

from __future__ import annotations

import json
import sys

from stpn.cli._session import Output, conduct
from stpn.config import from_dict


def work() -> int:
    order = json.load(sys.stdin)
    config = from_dict(order["config"])
    from stpn.training import session

    return conduct(
        lambda reporter, stop: session.ensure(config, order["root"], reporter=reporter, stop=stop),
        Output(json=True),
    )


if __name__ == "__main__":
    sys.exit(work())
