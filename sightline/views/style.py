"""One style for every figure: colors that color-blind readers can tell apart, one scale for similarity.

matplotlib is imported here, inside functions, so that `import sightline` does not pay for it.
"""

import functools
import io
import logging
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

INK = "#22262b"  # text and axes; the page replaces it by its own color of text
PALE = "#9aa1a9"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b5ea7", "#8c6d31")  # Okabe and Ito's
SMALLEST_TEXT = 10.0  # points; a page shows a point as 1.12 pixels or more
CHARACTER = 0.1  # inches, of a character of that size on average
NARROW = 3.7  # inches, of a figure for a phone
SIMILARITY = "magma"  # similarity and attention; perceptually even, dark to light
TWO_SIDED = "RdBu_r"
SETTINGS: dict[str, Any] = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "image.interpolation": "nearest",
    "savefig.dpi": 144,
    "text.parse_math": False,  # a dollar sign in a class name starts no formula
    "svg.fonttype": "none",  # text stays text: smaller files, and it can be searched
    "svg.hashsalt": "sightline",  # the same result gives the same file
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the settings to what is drawn inside, and to nothing else; the first figure raises no warning."""
    log = logging.getLogger("matplotlib")
    before = log.level
    log.setLevel(logging.ERROR)  # else it reports that it builds its font cache
    try:
        import matplotlib as mpl

        settings: Any = SETTINGS
        with mpl.rc_context(settings), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")  # characters that the font lacks are drawn as boxes
            yield
    finally:
        log.setLevel(before)


_narrow: ContextVar[bool] = ContextVar("narrow figures", default=False)


@contextmanager
def narrow_figures() -> Iterator[None]:
    """What is drawn inside fits a phone: panels one below the other, fewer maps in a row."""
    token = _narrow.set(True)
    try:
        yield
    finally:
        _narrow.reset(token)


def is_narrow() -> bool:
    """Whether figures are drawn for a phone."""
    return _narrow.get()


def panels(figure: Any, count: int, ratios: Sequence[float] | None = None, *, share_y: bool = False) -> list[Any]:
    """Axes side by side; on a narrow figure, one below the other."""
    if is_narrow():
        return list(figure.subplots(count, 1, squeeze=False)[:, 0])
    return list(figure.subplots(1, count, squeeze=False, width_ratios=ratios, sharey=share_y)[0])


def in_a_row(most: int) -> int:
    """How many maps stand in a row: so many, or four on a narrow figure."""
    return min(most, 4) if is_narrow() else most


def enlarge_text(figure: Any) -> None:
    """No text smaller than what a page can show legibly."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_fontsize(max(text.get_fontsize(), SMALLEST_TEXT))
    if is_narrow():
        for ax in figure.findobj(lambda part: getattr(part, "get_subplotspec", lambda: None)() is not None):
            ax.xaxis.label.set_text(wrap_label(ax.get_xlabel(), ax))


def wrap_label(text: str, ax: Any) -> str:
    """The label below axes, in lines that are no wider than its column of the figure."""
    columns = ax.get_subplotspec().get_gridspec().ncols
    most = max(12, int(ax.get_figure(root=True).get_figwidth() / columns / CHARACTER))
    return "\n".join(line for part in text.split("\n") for line in textwrap.wrap(part, most))


def new_figure(size: tuple[float, float]) -> Any:
    """A figure without a window, which a notebook shows whether or not pyplot was imported; the size is in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    figure._repr_png_ = functools.partial(to_png, figure)
    return figure


def fix_layout(figure: Any) -> None:
    """Find the place of everything once; with a layout engine, each file that is saved is drawn twice."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)


def to_png(figure: Any, *, dpi: int = 90) -> bytes:
    """The bytes of a figure as PNG."""
    buffer = io.BytesIO()
    with figure_style():
        figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def colors(name: str = SIMILARITY) -> NDArray[np.uint8]:
    """The 256 colors of a map (256, 3), for the page's script."""
    import matplotlib as mpl

    return np.asarray(np.round(mpl.colormaps[name](np.arange(256))[:, :3] * 255), dtype=np.uint8)


def finite(values: ArrayLike, otherwise: float = 0.0) -> NDArray[np.float64]:
    """Replace infinities and NaN: lengths of error bars and limits of axes must be finite, what is drawn need not."""
    x = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(x), x, otherwise)


def nice_top(values: NDArray) -> float:
    """The top of a color scale: 1, or a smaller round number where no value reaches half of it."""
    known = values[np.isfinite(values)]
    most = float(known.max()) if known.size else 1.0
    return next((top for top in (0.05, 0.1, 0.2, 0.5) if most <= top), 1.0)


def heat(
    ax: Any, values: NDArray, *, top: float = 1.0, label: str = "", origin: str = "upper", bar: bool = True
) -> Any:
    """A heat map from 0 to `top`; NaN is gray, and the color bar has an arrow where values exceed its ends."""
    import matplotlib as mpl

    shades = mpl.colormaps[SIMILARITY].with_extremes(bad="#b8bcc2")
    shown = ax.imshow(values, cmap=shades, vmin=0, vmax=top, origin=origin, aspect="auto" if bar else "equal")
    ax.spines[:].set_visible(False)
    if bar:
        known = values[np.isfinite(values)]
        ends = ("min" if (known < 0).any() else "") + ("max" if (known > top).any() else "")
        extend: Any = {"": "neither", "min": "min", "max": "max", "minmax": "both"}[ends]
        ax.figure.colorbar(shown, ax=ax, label=label, fraction=0.05, pad=0.02, extend=extend)
    return shown


def bare(ax: Any, title: str = "") -> None:
    """No ticks, no frame: for images."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    if title:
        ax.set_title(fold_title(ax, title))


def fold_title(ax: Any, title: str) -> str:
    """A title in two lines at most, so that it does not run into those of the columns beside it."""
    columns = ax.get_subplotspec().get_gridspec().ncols
    most = max(8, int(ax.get_figure(root=True).get_figwidth() / columns / CHARACTER))
    lines = textwrap.wrap(title, most, break_long_words=False, max_lines=2, placeholder=" …")
    return "\n".join(line if len(line) <= most else line[: most - 1] + "…" for line in lines)


def whole_numbers(ax: Any) -> None:
    """Blocks and heads are counted: there is no block 2.5."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(6 if is_narrow() else 10, integer=True))


def legend_above(ax: Any, few: int = 3) -> None:
    """A legend where it hides nothing: inside for a few lines, else above the axes."""
    if len(ax.get_legend_handles_labels()[1]) <= few:
        ax.legend(loc="best")
    else:
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=1 if is_narrow() else 2)


def mosaic(tiles: NDArray, columns: int, gap: int = 1) -> NDArray[np.float64]:
    """Tiles (n, y, x) or (n, y, x, 3) in rows with gaps between; gaps and unused cells are NaN."""
    count, y, x = tiles.shape[:3]
    rows = -(-count // columns)
    out = np.full((rows * (y + gap) - gap, columns * (x + gap) - gap, *tiles.shape[3:]), np.nan)
    for i, tile in enumerate(tiles):
        r, c = divmod(i, columns)
        out[r * (y + gap) : r * (y + gap) + y, c * (x + gap) : c * (x + gap) + x] = tile
    return out


def spread_out(count: int, most: int) -> list[int]:
    """At most so many evenly spaced integers from 0 to count - 1, first and last included."""
    return sorted({int(i) for i in np.rint(np.linspace(0, count - 1, min(count, most)))}) if count else []


def equal_steps(count: int, most: int) -> list[int]:
    """At most so many of the numbers 1 to count, in equal steps, for an axis: 2, 4, 6 rather than 1, 3, 4."""
    step = -(-count // most)
    return list(range(step, count + 1, step)) if count else []


def lines(ax: Any, x: Any, rows: NDArray, names: Sequence[str], band: NDArray | None = None) -> None:
    """One line per row with its name and, where it has one, its band."""
    for i, (row, name) in enumerate(zip(rows, names)):
        at = x[i] if isinstance(x, np.ndarray) and x.ndim == 2 else x
        color = COLORS[i % len(COLORS)]
        style = ("-", "--", ":")[i // len(COLORS) % 3]
        ax.plot(at, row, marker="o" if len(row) < 40 else "", color=color, linestyle=style, label=str(name))
        if band is not None and np.isfinite(band[i]).any():
            ax.fill_between(at, row - band[i], row + band[i], color=color, alpha=0.18, linewidth=0)


def legend(ax: Any, count: int, most: int = 12) -> None:
    """A legend, unless it would be too long to read."""
    if 1 < count <= most:
        ax.legend(loc="best")


def banded(ax: Any, at: NDArray, row: NDArray, half: NDArray, **line: Any) -> None:
    """A line with its 95 % interval, where it has one."""
    ax.plot(at, row, **line)
    if half.shape == row.shape and np.isfinite(half).any():
        ax.fill_between(at, row - half, row + half, color=line["color"], alpha=0.18, linewidth=0)


def between(value: float, half: float, show: Callable[[float], str], *, most: float = np.inf) -> str:
    """ " (3.9 to 4.7)", the interval in text; nothing where there is none."""
    if not np.isfinite(half):
        return ""
    return f" ({show(max(0.0, value - half))} to {show(min(most, value + half))})"


def frame_cell(ax: Any, cell: int, grid: tuple[int, int], size: tuple[int, ...], offset: float = 0.0) -> None:
    """A frame around one cell."""
    from matplotlib.patches import Rectangle

    high, wide = size[0] / grid[0], size[1] / grid[1]
    corner = (cell % grid[1] * wide - offset, cell // grid[1] * high - offset)
    ax.add_patch(Rectangle(corner, wide, high, fill=False, edgecolor=COLORS[5], linewidth=1.5))


def map_rows(figure: Any, columns: int, rows: int) -> Any:
    """Bare axes for images and maps."""
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        bare(ax)
    return axes
