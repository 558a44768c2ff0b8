"""`--help` everywhere: complete, with an example that parses, and without loading what only running needs."""

import os
import re
import shlex
import subprocess
import sys

import click
import pytest

import sightline
from sightline.cli.shell import cli, main
from sightline.cli.verbs import VERBS

HEAVY = ("torch", "numpy", "rich", "matplotlib", "PIL", "safetensors")
SPY = f"""
import sys
from sightline.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def commands():
    """Every command by the words that call it."""
    context = click.Context(cli)
    found = {(): cli}
    for name in VERBS:
        found[(name,)] = command = cli.get_command(context, name)
        for inner in getattr(command, "commands", {}):
            found[(name, inner)] = command.commands[inner]
    return found


COMMANDS = commands()


@pytest.mark.parametrize("words", [*COMMANDS, None], ids=lambda words: " ".join(words) if words else "bare")
def test_help_loads_nothing_heavy(words):
    root = os.path.dirname(os.path.dirname(sightline.__file__))
    arguments = () if words is None else (*words, "--help")
    done = subprocess.run(
        [sys.executable, "-c", SPY, *arguments], capture_output=True, text=True, cwd=root, check=True, timeout=120
    )
    assert done.stdout.startswith("Usage: sightline")
    assert done.stderr.split() == []


def test_importing_the_package_loads_no_torch():
    code = "import sys, sightline; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "bare")
def test_help_has_one_example_and_it_parses(words):
    examples = [line.strip() for line in COMMANDS[words].help.splitlines() if "Example:" in line]
    assert len(examples) == 1
    assert len(examples[0]) <= 76  # one line of the help, to be copied
    said = shlex.split(examples[0].removeprefix("Example: "))
    assert said[: 1 + len(words)] == ["sightline", *words]
    context = cli.make_context("sightline", said[1:])
    name, command, rest = cli.resolve_command(context, said[1:])
    inner = command.make_context(name, rest, parent=context)
    if isinstance(command, click.Group):
        name, command, rest = command.resolve_command(inner, rest)
        command.make_context(name, rest, parent=inner)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "bare")
def test_help_is_plain(words):
    text = COMMANDS[words].get_help(click.Context(COMMANDS[words]))
    assert not re.search(r"(?i)picture|colour|normalis|\b(told|twins?)\b|\bR\d{1,2}\b", text)


def test_the_table_is_complete():
    """Every verb of every file of the room is in the table."""
    files = {verb.file for verb in VERBS.values()}
    modules = [sys.modules[f"sightline.cli.{file}"] for file in files]
    inner = {command for words, command in COMMANDS.items() if len(words) == 2}
    defined = {c.name for m in modules for c in vars(m).values() if isinstance(c, click.Command) and c not in inner}
    assert defined == set(VERBS)


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (("train", "--data", "photos"), "sightline train [OPTIONS] DATA"),
        (("compare", "--model", "a", "--data", "b"), "sightline compare [OPTIONS] MODEL MODEL DATA"),
    ],
)
def test_an_argument_that_is_given_as_an_option_says_where_it_belongs(words, usage, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert f"{words[1]} is no option" in said
    assert usage in said


def test_an_unknown_option_still_has_its_neighbor(capsys):
    with pytest.raises(SystemExit):
        main(("train", "--recip", "laptop_vit"))
    assert "--recipe" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("study", "lst"), "There is no command 'lst'. Did you mean list? Type sightline study --help"),
        (("data", "chek", "photos"), "Did you mean check? Type sightline data --help"),
        (("lok",), "Did you mean look? Type sightline --help"),
        (("train", "photos", "--model", "vit-nano4"), "Missing option '--out'. Example: sightline train "),
        (("look", "--out", "x"), "Missing argument 'MODEL'. Example: sightline look "),
    ],
)
def test_a_command_that_is_wrong_or_incomplete_says_what_to_type(words, sentence, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err
