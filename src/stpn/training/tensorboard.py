"""TensorBoard events beside the metrics, where the extra `tensorboard` is installed."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from typing import Any

from stpn._files import explain_os_errors
from stpn.runs import Run
from stpn.training.loop import Reporter
from stpn.training.trainer import Row, Trainer


def available() -> bool:
    return importlib.util.find_spec("tensorboard") is not None


class TensorBoard(Reporter):
    """Each column of a row becomes a curve."""

    def __init__(self) -> None:
        self._writer: Any = None

    def started(self, run: Run, trainer: Trainer) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # what a killed process wrote after its last checkpoint will come again: hide the old points
        with explain_os_errors(f"write {run.tensorboard}"):
            self._writer = SummaryWriter(str(run.tensorboard), purge_step=trainer.done + 1)

    def measured(self, row: Row) -> None:
        with explain_os_errors("write TensorBoard events"):
            for name, value in row.items():
                if name != "step" and value is not None:
                    self._writer.add_scalar(name, value, int(row["step"]))

    def ended(self) -> None:
        if self._writer is not None:
            with suppress(OSError):  # a full disk, which whoever wrote to it has told
                self._writer.close()
