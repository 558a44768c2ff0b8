"""What every verb shares: the group, `--json`, tables, and how errors reach the user."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import sightline as sl
from sightline.spec import legible, to_json


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(sl.__version__, prog_name="sightline")
def cli() -> None:
    """Train vision models, and see what they see."""


def verb(function: Callable[..., Any]) -> click.Command:
    """A command with `--json`: the function returns plain data, and `show` prints it either way."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print machine-readable JSON.")
    return cli.command()(as_json(function))


def show(data: Any, as_json: bool, title: str = "") -> None:
    """Print rows (a list of dicts) as a table, or one dict as a list of names and values."""
    if as_json:
        click.echo(to_json(data, other=plain))
        return
    rows = data if isinstance(data, list) else [{"what": k, "value": v} for k, v in data.items()]
    table = Table(
        title=Text(title, style="table.title"),
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in rows[0] if rows else ():
        number = all(isinstance(row[name], int | float) or row[name] is None for row in rows)
        table.add_column(Text(name), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(text(value)) for value in row.values()))  # not markup: a file may be called [red].jpg
    Console().print(table)


def text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return legible(f"{value:,.4g}")
        case (int(), int()):
            return f"{value[0]} x {value[1]}"
        case tuple():
            return ", ".join(map(text, value))
        case _:
            return str(value)


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. An error the user can mend is one sentence and exit code 2, never a traceback."""
    try:
        cli.main(args=None if arguments is None else list(arguments), prog_name="sightline", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        complain(error.format_message())
    except (KeyboardInterrupt, click.Abort) as error:
        sys.exit(f"sightline: {str(error) or 'stopped'}.")
    except BrokenPipeError:
        sys.exit(0)
    except (ValueError, FileNotFoundError) as error:
        complain(str(error))
    except ConnectionError as error:  # another process of the job is gone
        sys.exit(f"sightline: {error}")


def complain(message: str) -> None:
    """One sentence to the user, exit code 2."""
    click.echo(f"sightline: {' '.join(message.split())}", err=True)
    sys.exit(2)
