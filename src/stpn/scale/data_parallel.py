"""Supervised training by several processes at once: Ray Train and DistributedDataParallel.

    outcome = train(config, "runs", workers=2)

Every process draws the same batch, computes the loss of its share and averages gradients with the
others, so the number of workers changes neither what is learnt nor the meaning of `batch_size`:
only the order of sums. The first keeps the run directory as any training does, which all nodes must
see. If one dies, all start again from the last checkpoint.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from stpn._extras import need
from stpn.config import RunConfig, from_dict
from stpn.errors import ConfigError, StpnError
from stpn.runs import Run
from stpn.scale.cluster import Resources, connected, require_room
from stpn.scale.worker import ensure
from stpn.tasks import registry
from stpn.tasks.agents import AgentTask
from stpn.training.loop import Reporter, Several, Stop
from stpn.training.session import Outcome
from stpn.training.supervised import SupervisedTrainer
from stpn.training.tensorboard import TensorBoard, available
from stpn.training.trainer import Trainer

RESTARTS = 3
"""How often a lost worker is replaced."""


class TrainingFailed(StpnError):
    """Training on several workers ended with an error in one of them."""


def train(
    config: RunConfig, root: str | Path = "runs", *, workers: int, address: str | None = None
) -> Outcome:
    """Bring the run of this configuration to its end with `workers` processes of `threads` CPUs.

    Starts it, resumes it, or leaves a finished one alone.
    """
    _check(config, workers)
    run = Run(Path(root) / config.directory)
    if run.exists and run.summary is not None and run.summary.done >= config.total:
        return Outcome(run, finished=True, summary=run.summary)
    with connected(address) as ray, tempfile.TemporaryDirectory(prefix="stpn-") as scratch:
        resources = Resources(cpus=config.threads or 1)
        require_room(ray, resources, count=workers)
        _fit(config, Path(root).resolve(), workers, resources, scratch)
    run = Run.open(run.path)
    return Outcome(run, finished=run.summary is not None, summary=run.summary)


def _check(config: RunConfig, workers: int) -> None:
    if workers < 1:
        raise ConfigError(f"workers must be >= 1, not {workers}")
    config.check()
    if isinstance(registry.get(config.task), AgentTask):
        raise ConfigError(f"{config.task} is not a supervised task: workers cannot share its data")
    if config.device != "cpu":
        raise ConfigError("several workers share batches on the CPU: leave out --device")
    batch = getattr(config, "batch_size", 1)
    if batch < workers:
        raise ConfigError(f"a batch of {batch} cannot be shared by {workers} workers")


def _fit(config: RunConfig, root: Path, workers: int, resources: Resources, scratch: str) -> None:
    train = need("ray.train", extra="ray")
    torch_trainer = need("ray.train.torch", extra="ray").TorchTrainer
    trainer = torch_trainer(
        _work,
        train_loop_config={"config": config.to_dict(), "root": str(root)},
        scaling_config=train.ScalingConfig(
            num_workers=workers, resources_per_worker={"CPU": resources.cpus}
        ),
        run_config=train.RunConfig(
            storage_path=scratch, failure_config=train.FailureConfig(max_failures=RESTARTS)
        ),
    )
    try:
        trainer.fit()
    except train.TrainingFailedError as error:
        causes = getattr(error, "worker_failures", {}).values()
        cause = next(iter(causes), error)
        raise TrainingFailed(f"a worker failed: {str(cause).strip().splitlines()[-1]}") from error


def _work(order: dict[str, Any]) -> None:
    """One of the workers. All go through the same session; only the first one's is kept."""
    context = need("ray.train", extra="ray").get_context()
    group = Group(context.get_world_rank(), context.get_world_size())
    config = from_dict(order["config"])
    reporters: list[Reporter] = [group]
    if group.rank == 0:
        if available():
            reporters.append(TensorBoard())
        ensure(config, Path(order["root"]), Several(*reporters), Stop())
        return
    with tempfile.TemporaryDirectory(prefix="stpn-") as scratch:
        ensure(config, Path(scratch), Several(*reporters), Stop())


class Group(Reporter):
    """This process among `size`. As a reporter it learns of the trainer before the first update."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def started(self, run: Run, trainer: Trainer) -> None:
        """Begin where the first worker is, and average gradients from now on."""
        assert isinstance(trainer, SupervisedTrainer)
        state: list[Any] = [trainer.state_dict() if self.rank == 0 else None]
        distributed.broadcast_object_list(state, src=0)
        if self.rank:
            trainer.load_state_dict(state[0])
        trainer.network = DistributedDataParallel(trainer.model)
        trainer.parallel = self

    def loss(
        self, trainer: SupervisedTrainer[Any], x: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weighted so that the mean over the workers is the mean over the whole batch."""
        mine = slice(self.rank, None, self.size)
        count = len(range(len(x))[mine])
        if not count:  # the last batch of an epoch may be tiny, but everyone must take part
            mine = slice(0, 1)
        weight = count * self.size / len(x)
        x, target = x[mine], target[mine]
        loss = trainer.loss_of(trainer.output_of(x, target), target) * weight
        # everyone learns the whole loss: should it be NaN, all stop at the same update
        return loss, self._add_up(loss.detach().clone()) / self.size

    def _add_up(self, value: Tensor) -> Tensor:
        distributed.all_reduce(value)
        return value


__all__ = ["Group", "TrainingFailed", "train"]
