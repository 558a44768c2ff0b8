"""The command line in this process, as a user runs it."""

from sightline.cli import main


def run(capsys, *arguments):
    """Exit code, standard output and standard error of one command."""
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = stop.code or 0
    out = capsys.readouterr()
    return code, out.out, out.err
