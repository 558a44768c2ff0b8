"""The command line lets waiting threads sleep; as a library the package leaves that to its caller."""

import os
import subprocess
import sys

import pytest

# prints the policy at the moment when torch is first imported
SPY = """
import os, sys
class Spy:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("policy", os.environ.get("OMP_WAIT_POLICY"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Spy())
"""


def policy(tmp_path, *words, **settings):
    """The policy when torch is loaded, in a process that is started with these words."""
    (tmp_path / "sitecustomize.py").write_text(SPY)
    around = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    around["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.getcwd()])
    done = subprocess.run([sys.executable, *words], env=around | settings, capture_output=True, text=True, timeout=120)
    return done.stdout.split()[-1]


def test_the_module_is_passive(tmp_path):
    assert policy(tmp_path, "-m", "sightline", "models") == "PASSIVE"
    assert policy(tmp_path, "-u", "-m", "sightline", "models") == "PASSIVE"  # as torchrun starts it


def test_the_script_is_passive(tmp_path):
    script = tmp_path / "sightline"
    script.write_text("from sightline.cli import main\nmain()\n")
    assert policy(tmp_path, str(script), "models") == "PASSIVE"


@pytest.mark.parametrize("wish", ["ACTIVE", "passive"])
def test_a_user_s_own_setting_wins(tmp_path, wish):
    assert policy(tmp_path, "-m", "sightline", "models", OMP_WAIT_POLICY=wish) == wish


def test_a_library_changes_nothing(tmp_path):
    assert policy(tmp_path, "-c", "import sightline as sl; sl.build") == "None"
