"""Short rehearsals of a run: two steps to see that everything works, and a proof that it resumes exactly."""

import copy
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sightline.data.datasets import Dataset
from sightline.models.construct import Model
from sightline.training.failures import Stopped
from sightline.training.loop import Evaluator, fit
from sightline.training.parallel import Strategy
from sightline.training.recipe import Recipe
from sightline.training.run.folder import MODEL, Run

PROOF_STEPS = 6
REHEARSAL = " (smoke)"  # at the end of the recipe's name in the record of a smoke run


@dataclass(frozen=True, kw_only=True)
class SmokeReport:
    """A smoke run: where it is, its losses, and what the evaluation measured.

    >>> report = sl.training.SmokeReport(run=sl.Run("runs/x"), losses=(2.3, 2.2), metrics={"val/accuracy": 0.1})
    >>> report.losses
    (2.3, 2.2)
    """

    run: Run
    losses: tuple[float, ...]  # one per step
    metrics: dict[str, float]  # last values of everything that was logged


@dataclass(frozen=True, kw_only=True)
class ResumeProof:
    """Whether a run that was interrupted and resumed ends like one that was not.

    >>> sl.training.ResumeProof(steps=6, interrupted_at=3, same_weights=True, same_losses=True).holds
    True
    """

    steps: int
    interrupted_at: int
    same_weights: bool  # byte by byte
    same_losses: bool  # of every step

    @property
    def holds(self) -> bool:
        return self.same_weights and self.same_losses


def smoke_run(
    model: Model,
    train: Dataset,
    recipe: Recipe,
    *,
    val: Dataset | None = None,
    out: str | Path = "runs/smoke",
    evals: Sequence[Evaluator] = (),
    workers: int = 0,
    parallel: Strategy = "ddp",
) -> SmokeReport:
    """Train two steps with a small batch and evaluate once, to see that everything works. Arguments as for `sl.fit`.

    >>> import tempfile
    >>> train, val = sl.dataset("scenes/shape", num=40, size=16).split(0.8)
    >>> model = sl.build("vit-nano4", classes=10, size=16, depth=1)
    >>> report = sl.training.smoke_run(model, train, sl.recipes.laptop_vit(), val=val, out=tempfile.mkdtemp())
    >>> len(report.losses), "val/accuracy" in report.metrics
    (2, True)
    """
    short = smoke_recipe(recipe, len(train))
    run = fit(model, train, short, val=val, out=out, evals=evals, workers=workers, parallel=parallel)
    return SmokeReport(run=run, losses=_losses(run), metrics=run.summary())


def is_rehearsal(run: Run) -> bool:
    """Whether a folder contains a smoke run, which may be removed for the real one.

    >>> import tempfile
    >>> train = sl.dataset("scenes/shape", num=16, size=16)
    >>> model = sl.build("vit-nano4", classes=10, size=16, depth=1)
    >>> report = sl.training.smoke_run(model, train, sl.recipes.laptop_vit(), out=tempfile.mkdtemp())
    >>> sl.training.is_rehearsal(report.run)
    True
    """
    return str(run.about["name"]).endswith(REHEARSAL)


def smoke_recipe(recipe: Recipe, images: int) -> Recipe:
    """The recipe cut down to two steps of at most eight images, and one evaluation."""
    return replace(
        recipe,
        name=recipe.name + REHEARSAL,
        steps=2,
        epochs=None,
        batch=max(recipe.views, min(recipe.batch, 8, images) // recipe.views * recipe.views),
        warmup=min(recipe.warmup, 1),
        micro=None,
        milestones=(1,) if recipe.milestones else (),
        sizes=(),
        log_every=1,
        eval_every=2,
        save_every=2,
    )


def prove_resume(
    model: Model,
    train: Dataset,
    recipe: Recipe,
    *,
    val: Dataset | None = None,
    evals: Sequence[Evaluator] = (),
    workers: int = 0,
    parallel: Strategy = "ddp",
) -> ResumeProof:
    """Train six steps twice in a temporary folder, once without a break and once interrupted by a signal and resumed;
    compare losses and weights. The model is left unchanged. Arguments as for `sl.fit`.

    >>> train = sl.dataset("scenes/shape", num=40, size=16)
    >>> model = sl.build("vit-nano4", classes=10, size=16, depth=1)
    >>> sl.training.prove_resume(model, train, sl.Recipe(lr=1e-3, batch=8, epochs=3))
    ResumeProof(steps=6, interrupted_at=3, same_weights=True, same_losses=True)
    """
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("prove_resume interrupts itself by a signal, which works in the main thread only.")
    folder = Path(tempfile.mkdtemp())
    short = _proof_recipe(recipe)

    def run_again(out: Path, recipe: Recipe, stop: Sequence[Evaluator] = ()) -> Run:
        settings: dict[str, Any] = {"val": val, "workers": workers, "parallel": parallel}
        return fit(copy.deepcopy(model), train, recipe, out=out, evals=(*evals, *stop), **settings)

    try:
        whole = run_again(folder / "whole", short)
        same_passes = replace(short, micro=whole.about["plan"]["micro"])  # free memory may have changed since
        step, resumed = _interrupt_and_resume(run_again, folder / "resumed", same_passes)
        same_weights = (whole.path / MODEL).read_bytes() == (resumed.path / MODEL).read_bytes()
        same_losses = _losses(whole) == _losses(resumed)
    finally:
        shutil.rmtree(folder)
    return ResumeProof(steps=PROOF_STEPS, interrupted_at=step, same_weights=same_weights, same_losses=same_losses)


def _proof_recipe(recipe: Recipe) -> Recipe:
    """The recipe cut down to six steps, with a checkpoint after the interruption and evaluations on both sides."""
    return replace(
        recipe,
        steps=PROOF_STEPS,
        epochs=None,
        warmup=min(recipe.warmup, 2),
        milestones=(2, 4) if recipe.milestones else (),
        log_every=1,
        eval_every=3,
        save_every=4,
    )


def _interrupt_and_resume(run_again: Callable[..., Run], out: Path, recipe: Recipe) -> tuple[int, Run]:
    """The step at which a run was interrupted, and the run after it was resumed."""

    def stop(_: Any) -> dict[str, float]:
        signal.raise_signal(signal.SIGINT)
        return {}

    try:
        run_again(out, recipe, stop=((PROOF_STEPS // 2, stop),))
    except Stopped:
        step = Run(out).rows()[-1]["step"]
        return step, run_again(out, recipe)
    raise RuntimeError("The run did not stop when it was interrupted.")


def _losses(run: Run) -> tuple[float, ...]:
    return tuple(row["train/loss"] for row in run.rows() if "train/loss" in row)
