"""README, examples and the timetable say what the program does."""
import re
from pathlib import Path

import pytest

import memory_tiered as m

ROOT = Path(m.__file__).parent
README = (ROOT / "README.md").read_text(encoding="utf-8") if (ROOT / "README.md").exists() else ""
pytestmark = pytest.mark.skipif(not README, reason="the file stands alone, without its repository")
PROGRAM = r"memory_tiered\.py ((?!md)[a-z][\w-]*)"


@pytest.mark.parametrize("name", sorted(m.COMMANDS))
def test_every_command_is_in_the_readme(name):
    assert re.search(r"`%s\b" % re.escape(name), README)


@pytest.mark.parametrize("file", ["README.md", "CLAUDE.md.example", "cron/memory-tiered.crontab"])
def test_every_command_that_a_text_names_exists(file):
    named = set(re.findall(PROGRAM, (ROOT / file).read_text(encoding="utf-8")))
    assert named and named <= {*m.COMMANDS, "hook"}


@pytest.mark.parametrize("name", [k for k in re.findall(r"`config set ([\w.]+)", README)])
def test_every_setting_that_the_readme_names_exists(name):
    assert name in m.DEFAULTS


def test_every_environment_variable_of_the_readme_is_read():
    source = Path(m.__file__).read_text(encoding="utf-8")
    assert all(name in source for name in re.findall(r"MEMORY_TIERED_[A-Z]+", README))


def test_the_half_lives_of_the_readme_are_right():
    for days, rate in re.findall(r"^\| (\d+) days \| `([\d.]+)`", README, re.M):
        assert float(rate) == pytest.approx(m.rate_of_half_life(int(days)), abs=1e-5)


def test_the_examples_of_the_quick_start_run(cli, home):
    for line in re.findall(r"^python3 memory_tiered\.py (.+?)\s*(?:#.*)?$", README, re.M):
        words = [w.strip('"') for w in re.findall(r'"[^"]*"|\S+', line.split(" && ")[0])]
        if words[0] in ("init", "add-l1", "search-all", "sync"):
            cli(*words)
    assert len(cli.json("list")["memories"]) == 2
