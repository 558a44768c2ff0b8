"""Shared by every verb: the command group, `--json`, tables, and error messages."""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

import sightline as sl
from sightline.cli.verbs import VERBS
from sightline.untrusted import escape_controls

# appended to the help of every verb that takes this argument
ARGUMENTS = {
    "model": "MODEL is a file of weights, a run folder, a published name (sightline models --weights), timm:NAME, "
    "torchvision:NAME[:WEIGHTS], hf:NAME_OR_FOLDER, or FILE.py:FUNCTION (a function of yours that returns a timm, "
    "transformers, torchvision or other module).",
    "data": "DATA is a folder with a folder of images per class, a name (sightline data list), a manifest (.csv, "
    ".jsonl), arrays (.npz), shards (.tar), a single image, or hf:OWNER/NAME; with masks: COCO's instances "
    "(.json), Pascal VOC's folder, or a folder with images/ and masks/.",
}
VARIANT = " The name of a variant (sightline models) works too, with random weights."
NEED_WEIGHTS = ("predict", "export", "serve")  # verbs that refuse random weights


class Group(click.Group):
    """Verbs, of which a misspelt one is answered with the closest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            near = "".join(f" Did you mean {name}?" for name in difflib.get_close_matches(args[0], names, 1))
            raise click.UsageError(
                f"There is no command {args[0]!r}.{near} Type {ctx.command_path} --help to list all of them."
            )
        return super().resolve_command(ctx, args)


class LazyVerbs(Group):
    """The verbs of the table. A verb's file is imported only when the verb runs or shows its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"sightline.cli.{VERBS[cmd_name].file}")
        return next(c for c in vars(module).values() if isinstance(c, click.Command) and c.name == cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


@click.group(cls=LazyVerbs, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(sl.__version__, prog_name="sightline")
@click.pass_context
def cli(context: click.Context) -> None:
    """Train vision models, and see what they see.

    Example: sightline demo --minutes 2
    """
    help_without_verb(context)


def help_without_verb(context: click.Context) -> None:
    """Print the help if no subcommand is given."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def verb(function: Callable[..., Any]) -> click.Command:
    """A command with `--json`, and with its arguments explained below its help; `eval_` becomes the verb eval."""
    command = click.command(function.__name__.rstrip("_"))(function)
    command.params.append(click.Option(["--json", "as_json"], is_flag=True, help="Print machine-readable JSON."))
    words = {p.human_readable_name.lower() for p in command.params if isinstance(p, click.Argument)}
    also = {} if command.name in NEED_WEIGHTS else {"model": VARIANT}
    command.epilog = "\n\n".join(text + also.get(word, "") for word, text in ARGUMENTS.items() if word in words)
    return command


def verb_of(group: click.Group) -> Callable[[Callable[..., Any]], click.Command]:
    """A decorator that adds a function to a group as one of its verbs."""

    def add(function: Callable[..., Any]) -> click.Command:
        command = verb(function)
        group.add_command(command)
        return command

    return add


def show(data: Any, as_json: bool, title: str = "") -> None:
    """Print a list of dicts as a table, or one dict as a list of names and values."""
    if as_json:
        from sightline.spec import to_json  # here: `--help` does without

        click.echo(to_json(data, other=to_plain))
        return
    from rich import box  # here: `--help` does without
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = data if isinstance(data, list) else [{"what": k, "value": v} for k, v in data.items()]
    console = Console()
    if isinstance(data, list) and needed_width(rows) > console.width:
        print_records(rows, title, width=console.width)
        return
    if title:  # not the table's own, which would be wrapped at the width of a narrow table
        console.print(Text(escape_controls(title), style="table.title"))
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in rows[0] if rows else ():
        number = all(isinstance(row[name], int | float) or row[name] is None for row in rows)
        table.add_column(
            Text(escape_controls(name)),
            justify="right" if number else "left",
            overflow="fold",
            min_width=longest_word([name, *(text(row[name]) for row in rows)]) if isinstance(data, list) else None,
        )  # a name that is broken in two cannot be copied
    for row in rows:
        table.add_row(
            *(Text(escape_controls(text(value))) for value in row.values())
        )  # not markup: a file may be called [red].jpg
    console.print(table)


def summary_rows(result: Any) -> list[dict[str, Any]]:
    """The summary of a result as a table, each number with its interval over images: few images tell little. Of up to
    five classes, the first five are always right."""
    ends = {name: f"{text(float(low))} to {text(float(high))}" for name, (low, high) in result.intervals().items()}
    always = "top-5" if len(getattr(result, "classes", ())) <= 5 else ""
    rows = [{"what": name, "value": value} for name, value in result.summary().items() if name != always]
    return [row | {"95 % interval": ends.get(row["what"], "")} for row in rows] if ends else rows


def needed_width(rows: list[dict[str, Any]]) -> int:
    """The width at which no word of a table is folded."""
    columns = [[name, *(text(row[name]) for row in rows)] for name in rows[0]] if rows else []
    return 2 + sum(2 + longest_word(cells) for cells in columns)


def longest_word(cells: list[str]) -> int:
    return max(len(word) for cell in cells for word in (cell.split() or [""]))


def print_records(rows: list[dict[str, Any]], title: str, *, width: int) -> None:
    """A table that is too wide for the terminal, one value per line: columns of single letters cannot be read."""
    import textwrap  # here: `--help` does without

    def line(words: str) -> None:
        for folded in textwrap.wrap(words, width, drop_whitespace=False, subsequent_indent="    "):
            tell(folded, err=False)

    line(title)
    for row in rows:
        (_, first), *others = row.items()
        click.echo()
        line(text(first))
        for name, value in others:
            if text(value):
                line(f"  {name}: {text(value).strip()}")


def text(value: Any) -> str:
    """Format a value for a table."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            from sightline.spec import number  # here: `--help` does without

            return number(value)
        case (int(), int()):
            return f"{value[0]} x {value[1]}"
        case tuple() | list():
            return ", ".join(map(text, value))
        case _:
            return str(value)


def memory(count: int) -> str:
    """Format a number of bytes."""
    return f"{count / 2**20:,.1f} MiB" if count < 2**30 else f"{count / 2**30:,.2f} GiB"


def to_plain(value: Any) -> Any:
    """Convert arrays and paths, which the JSON encoder does not handle."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. An error that the user can fix prints one sentence and exits with code 2."""
    # OpenMP reads this once, when a verb loads torch. By default a waiting thread spins for some milliseconds. On a
    # busy machine that takes time from the threads it waits for, and training slows down several times (docs/log.md).
    # Set here because a library leaves it to its caller; child processes inherit it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    show_warnings()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="replace")  # a terminal that knows ASCII only gets ? for the rest
    try:
        cli.main(args=None if arguments is None else list(arguments), prog_name="sightline", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        complain(argument_by_place(error) or error.format_message() + example_of(error))
    except (KeyboardInterrupt, click.Abort) as error:
        cause = error.__cause__ or error  # click puts Abort in place of what was raised
        message = str(cause) or "stopped; type the same command again: what was saved is kept"
        click.echo(f"sightline: {message}.", err=True)
        sys.exit(130)  # as shells report a program ended by Ctrl-C
    except BrokenPipeError:
        sys.exit(0)
    except ValueError as error:
        complain(str(error))
    except ConnectionError as error:  # another process of the job died
        sys.exit(f"sightline: {error}")
    except OSError as error:
        complain(os_sentence(error))
    except RecursionError:
        complain("A file is nested too deeply to be read: folders in folders, or JSON in JSON.")
    except MemoryError as error:
        complain(f"There is not enough memory ({error or 'no more to be had'}): try smaller images or a smaller batch.")


ADVICE = {
    errno.ENOSPC: "free some space, or write elsewhere",
    errno.EDQUOT: "free some space, or write elsewhere",
    errno.EROFS: "write elsewhere",
    errno.EACCES: "change its permissions, or use another place",
    errno.EPERM: "change its permissions, or use another place",
    errno.ELOOP: "a link leads back to itself: remove it",
    errno.EMFILE: "close some, or raise the limit with ulimit -n",
}


def os_sentence(error: OSError) -> str:
    """What the system said, about which file, and what to do."""
    files = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    said = (error.strerror or str(error) or type(error).__name__).rstrip(".")
    advice = f": {ADVICE[error.errno]}" if error.errno in ADVICE else ""
    return f"{files or 'A file'} cannot be used ({said}){advice}."


def argument_by_place(error: click.ClickException) -> str:
    """What to type for an argument that was given as an option, as in `train --data FOLDER`; empty otherwise."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    arguments = [p.make_metavar(error.ctx) for p in error.ctx.command.params if isinstance(p, click.Argument)]
    if error.option_name.lstrip("-").upper() not in arguments:
        return ""
    return f"{error.option_name} is no option: its value is given by its place. {error.ctx.get_usage()}"


def example_of(error: click.ClickException) -> str:
    """The example in a verb's help, for a command that lacks a part; empty otherwise."""
    if not isinstance(error, click.MissingParameter) or error.ctx is None:
        return ""
    lines = (error.ctx.command.help or "").splitlines()
    return "".join(f" {line.strip()}" for line in lines if line.strip().startswith("Example:"))


def complain(message: str) -> None:
    """One sentence to the user, exit code 2."""
    tell(f"sightline: {' '.join(message.split())}")
    sys.exit(2)


def tell(line: str, *, err: bool = True) -> None:
    """Print one line in which nothing from a file reaches the terminal as a control code."""
    click.echo(escape_controls(line), err=err)


class Once(logging.Filter):
    """Lets a message through once: some verbs open the same file twice."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        said, message = len(self.said), record.getMessage()
        self.said.add(message)
        return len(self.said) > said


class VisibleLines(logging.Formatter):
    """Log messages without control codes."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(escape_controls, super().format(record).splitlines()))


def show_warnings() -> None:
    """Warnings on stderr, unless the caller has set up logging."""
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleLines())
    handler.addFilter(Once())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
