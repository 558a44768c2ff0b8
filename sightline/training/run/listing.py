"""The runs in a folder, summarized."""

from dataclasses import dataclass
from pathlib import Path

from sightline.training.run.folder import Run


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run of a folder: what it trains, how far it is, and its curves. `problem` says why it cannot be read.

    >>> summary = sl.training.RunSummary(folder="runs/x", steps=50, total_steps=100, train_loss=(2.3, 1.9))
    >>> summary.progress, summary.loss, summary.accuracy
    ('50%', 1.9, None)
    """

    folder: str
    data: str = ""
    recipe: str = ""
    finished: bool = False
    steps: int = 0  # that were logged
    total_steps: int = 0
    train_loss: tuple[float, ...] = ()
    val_accuracy: tuple[float, ...] = ()
    problem: str = ""
    collapsed: str = ""  # a sentence, where the features of a run without labels have collapsed

    @property
    def progress(self) -> str:
        """ "finished", or the share of the steps that are done; and whether the features have collapsed."""
        done = "finished" if self.finished else f"{self.steps / max(1, self.total_steps):.0%}"
        return f"{done}, collapsed" if self.collapsed else done

    @property
    def loss(self) -> float | None:
        """The last training loss."""
        return self.train_loss[-1] if self.train_loss else None

    @property
    def accuracy(self) -> float | None:
        """The last validation accuracy; without labels, that of nearest neighbors."""
        return self.val_accuracy[-1] if self.val_accuracy else None


def list_runs(folder: str | Path = "runs") -> list[RunSummary]:
    """A summary of every run in a folder and its subfolders, by name; damaged ones with their `problem`.

    >>> import tempfile
    >>> sl.training.list_runs(tempfile.mkdtemp())
    []
    """
    return [_summarize(path.parent) for path in sorted(Path(folder).rglob("run.json"), key=lambda p: p.parent)]


def _summarize(folder: Path) -> RunSummary:
    run = Run(folder)
    try:
        about, curves = run.about, run.curves()
        series = {name: tuple(curves.of(name)[1].tolist()) for name in curves.names}
        return RunSummary(
            folder=str(folder),
            data=about["data"]["name"],
            recipe=about["name"],
            finished=run.finished,
            steps=int(curves.step[-1]) if len(curves.step) else 0,
            total_steps=about["plan"]["steps"],
            train_loss=series.get("train/loss", ()),
            val_accuracy=series.get("val/accuracy", series.get("val/knn", ())),
            collapsed=run.collapsed,
        )
    except Exception as error:  # one bad run must not hide the others
        what = (
            str(error) if isinstance(error, ValueError) else f"{folder} is damaged ({type(error).__name__}: {error})."
        )
        return RunSummary(folder=str(folder), problem=what)
