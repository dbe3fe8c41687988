"""TensorBoard events beside the metrics."""

from __future__ import annotations

import errno
import os

import pytest

from stpn.errors import RunError
from stpn.training.tensorboard import TensorBoard


class FullDisk:
    def add_scalar(self, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said_in_a_sentence() -> None:
    reporter = TensorBoard()
    reporter._writer = FullDisk()
    with pytest.raises(RunError, match="cannot write TensorBoard events: No space left on device"):
        reporter.measured({"step": 1, "loss": 0.5})
    reporter.ended()  # says nothing more
