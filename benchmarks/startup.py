"""Startup: processor time of every `--help` and of the imports, each in a process of its own, the fastest of several.

    python -m benchmarks.startup [REPEATS]

Results go to benchmarks/results/startup.json. Targets: every help under 0.5 s, `import sightline` at most 0.4 s more
than `import torch`.
"""

import json
import platform
import resource
import subprocess
import sys
from pathlib import Path

import click

from sightline.cli.shell import cli
from sightline.cli.verbs import VERBS

REPEATS = 5
RESULTS = Path(__file__).parent / "results" / "startup.json"
IMPORTS = {
    "python": "pass",
    "import torch": "import torch",
    "import sightline": "import sightline",
    "sl.build": "import sightline as sl; sl.build",
    "sl.load": "import sightline as sl; sl.load",
    "sl.look": "import sightline as sl; sl.look",
    "sl.fit": "import sightline as sl; sl.fit",
}


def seconds(words: list[str], repeats: int) -> float:
    """Processor time, user and system, of the fastest of several runs: others use the machine, too."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return round(min(once() for _ in range(repeats)), 3)


def helps() -> dict[str, list[str]]:
    """The words behind every help there is."""
    context = click.Context(cli)
    data = [["data", name] for name in cli.get_command(context, "data").commands]
    words = [[], *([name] for name in VERBS), *data]
    return {" ".join(["sightline", *w, "--help"]): ["-m", "sightline", *w, "--help"] for w in words}


def main(repeats: int) -> None:
    table = {name: seconds(["-c", code], repeats) for name, code in IMPORTS.items()}
    table |= {name: seconds(words, repeats) for name, words in helps().items()}
    for name, value in table.items():
        print(f"{name:<36} {value:6.3f} s")
    slowest = max(value for name, value in table.items() if name.endswith("--help"))
    # not the difference of the two imports of torch: that is the noise of seconds
    print(f"slowest help {slowest:.3f} s; import sightline {table['import sightline'] - table['python']:+.3f} s")
    about = {"python": platform.python_version(), "repeats": repeats, "processor seconds": table}
    RESULTS.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else REPEATS)
