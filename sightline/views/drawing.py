"""`sl.draw`: a figure of any result."""

from pathlib import Path
from typing import Any

from sightline.files import atomic
from sightline.spec import Result
from sightline.training.run.folder import Run
from sightline.views.style import NARROW, figure_style, fix_layout, is_narrow, new_figure
from sightline.views.table import view_of


def draw(result: Result | Run, ax: Any = None, *, title: bool = True) -> Any:
    """Draw a result as a matplotlib figure. With `ax`, it is drawn there; several panels take its place in the layout.

    A run shows its curves. A type without a view of its own shows its curves, its tables as heat maps, or the numbers
    of its summary.

    >>> import numpy as np
    >>> r = sl.analysis.HeadSubsets(title="Heads", caption="", similarity=np.array([[0.6], [0.3]]),
    ...     subsets=((0,), (1,)),
    ...                    distance=np.array([20.0, 90.0]), columns=("stages.0",), block=0)
    >>> figure = sl.draw(r)
    >>> figure.axes[0].get_xlabel(), figure.axes[0].get_title()
    ('mean attention distance of the subset, pixels', 'Heads')
    """
    if isinstance(result, Run):
        result = result.curves()
    if not isinstance(result, Result):
        raise ValueError(f"sl.draw takes a result, such as sl.cka returns, or a run; got a {type(result).__name__}.")
    view = view_of(result)
    with figure_style():
        size = (NARROW, view.narrow_height(result)) if is_narrow() else view.size
        figure = ax.figure if ax is not None else new_figure(size)
        if view.several_panels:
            place = figure if ax is None else _subfigure(ax)
            view.draw(result, place)
            if title:
                place.suptitle(result.title, fontsize=10)
        else:
            place = ax if ax is not None else figure.subplots()
            view.draw(result, place)
            if title:
                place.set_title(result.title)
    return figure


def _subfigure(ax: Any) -> Any:
    """A figure within the figure, in place of the axes."""
    place = ax.get_subplotspec()
    if place is None:
        raise ValueError("This result has several panels: pass axes that plt.subplots made, or none.")
    figure = ax.figure
    ax.remove()
    return figure.add_subfigure(place)


def save_figure(result: Result, path: str | Path) -> list[Path]:
    """Write a result as `path`.png and `path`.svg, and its numbers as `path`.npz.

    >>> import numpy as np, tempfile
    >>> r = sl.analysis.ObjectMass(title="Mass", caption="", mass=np.array([0.6]), area=np.array([0.2]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [p.name for p in sl.save_figure(r, folder + "/mass")]
    ['mass.png', 'mass.svg', 'mass.npz']
    """
    base = Path(path)
    base = base.with_suffix("") if base.suffix in (".png", ".svg", ".npz") else base
    figure = draw(result)
    with figure_style():
        fix_layout(figure)
    out = []
    for kind in ("png", "svg"):
        place = base.with_name(f"{base.name}.{kind}")
        with atomic(place) as partial, figure_style():
            figure.savefig(partial, format=kind, metadata={"Date": None} if kind == "svg" else None)
        out.append(place)
    return [*out, result.save(base.with_name(f"{base.name}.npz"))]
