"""The rows of a run's log, sent on to a tracker: TensorBoard, Weights & Biases, MLflow or trackio.

Each is a function that opens the tracker for a run and returns two: one that logs a row, one that closes. Where a
tracker keeps its numbers, and whether it is online, is set as its own documentation says (`WANDB_MODE=offline`,
`MLFLOW_TRACKING_URI` ...). A resumed run continues in the tracker's run, not in a second one.
"""

import hashlib
import importlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sightline.spec import to_json
from sightline.training.run.folder import LOG, Run

Send = Callable[[int, Mapping[str, float]], None]
PROJECT = "sightline"
log = logging.getLogger("sightline.training")


def check_tracker(name: str) -> None:
    """Refuse a tracker whose package is missing, before the first step."""
    needed = "torch.utils.tensorboard" if name == "tensorboard" else name
    try:
        importlib.import_module(needed)
    except ImportError:
        raise ValueError(f"track={name} needs a package: pip install {name}.") from None


@contextmanager
def open_tracker(name: str, run: Run) -> Iterator[Send]:
    """A function that sends the finite numbers of a row to a tracker; closed at the end, also after an error."""
    check_tracker(name)
    log_row, close = OPEN[name](run)
    failed = False

    def send(step: int, row: Mapping[str, float]) -> None:
        nonlocal failed
        try:
            if not failed:
                log_row(step, {k: float(v) for k, v in row.items() if math.isfinite(float(v))})
        except Exception as error:  # a server that is away must not end a training of days
            failed = True
            log.warning("%s gets no more rows (%s); %s has them all.", name, error, run.path / LOG)

    try:
        yield send
    finally:
        close()


def run_id(run: Run) -> str:
    """A name of this run that no other has, and that it keeps when it resumes."""
    about = run.about
    text = to_json([run.path.name, about.get("begun", ""), about["identity"]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def settings(run: Run) -> dict[str, Any]:
    """What a tracker shows beside the curves."""
    about = run.about
    recipe = {k: v for k, v in about["identity"]["recipe"].items() if v not in (None, [], "")}
    return {**recipe, "data": about["data"]["name"], "steps": about["plan"]["steps"], "folder": str(run.folder)}


def open_tensorboard(run: Run) -> tuple[Send, Callable[[], None]]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(run.path / "tensorboard"))

    def send(step: int, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            writer.add_scalar(name, value, step)

    return send, writer.close


def open_wandb(run: Run) -> tuple[Send, Callable[[], None]]:
    import wandb

    opened = wandb.init(project=PROJECT, name=run.path.name, id=run_id(run), resume="allow", config=settings(run))
    return lambda step, row: opened.log(dict(row), step=step), opened.finish


def open_trackio(run: Run) -> tuple[Send, Callable[[], None]]:
    import trackio

    name = f"{run.path.name}-{run_id(run)[:6]}"  # trackio knows runs by name
    opened = trackio.init(project=PROJECT, name=name, resume="allow", config=settings(run))
    return lambda step, row: opened.log(dict(row), step=step), trackio.finish


def open_mlflow(run: Run) -> tuple[Send, Callable[[], None]]:
    import mlflow

    client = mlflow.MlflowClient()
    known = client.get_experiment_by_name(PROJECT)
    experiment = client.create_experiment(PROJECT) if known is None else known.experiment_id
    same = client.search_runs([experiment], filter_string=f"tags.sightline = '{run_id(run)}'")
    if same:
        opened = same[0].info.run_id
    else:
        opened = client.create_run(experiment, run_name=run.path.name, tags={"sightline": run_id(run)}).info.run_id
        for name, value in settings(run).items():
            client.log_param(opened, name, str(value)[:500])  # MLflow takes 500 characters

    def send(step: int, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            client.log_metric(opened, name, value, step=step)

    return send, lambda: client.set_terminated(opened)


OPEN: dict[str, Callable[[Run], tuple[Send, Callable[[], None]]]] = {
    "tensorboard": open_tensorboard,
    "wandb": open_wandb,
    "mlflow": open_mlflow,
    "trackio": open_trackio,
}
