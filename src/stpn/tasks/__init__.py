"""The paper's tasks, each usable alone: `from stpn.tasks import art, familiarity`."""
