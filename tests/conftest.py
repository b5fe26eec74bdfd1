"""Shared fixtures: a store in a temporary home, a clock that stands still, the command line."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
if (ROOT / "memory_tiered.py").exists():
    sys.path.insert(0, str(ROOT))
import memory_tiered as m  # noqa: E402

TOOL = m.__file__
NOON = m.utc_seconds("2026-03-01T12:00:00Z")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty home; the real one is out of reach."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in [n for n in os.environ if n.startswith(("MEMORY_TIERED", "HERMES", "CODEX"))]:
        monkeypatch.delenv(name)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(folder))
    return folder


@pytest.fixture
def memory(home):
    """A facade on an empty store at noon of 1 March 2026."""
    opened = m.Memory(now=NOON, by="test")
    yield opened
    opened.close()


@pytest.fixture
def store(home):
    """An empty store."""
    opened = m.Store(str(home / "state.db"), NOON)
    yield opened
    opened.close()


class Cli:
    """The real file in a process of its own."""

    def __init__(self, home):
        self.home = home
        self.env = {"HOME": str(home), "USERPROFILE": str(home), "PATH": os.environ.get("PATH", ""),
                    "LANG": "C.UTF-8"}
        for name in ("SYSTEMROOT", "TEMP", "TMP"):
            if name in os.environ:
                self.env[name] = os.environ[name]

    def __call__(self, *args, stdin="", code=0, env=None, python=sys.executable):
        done = subprocess.run([python, TOOL, *map(str, args)], input=stdin, capture_output=True,
                              encoding="utf-8",
                              env={**self.env, **(env or {})}, cwd=self.home, timeout=120)
        assert "Traceback" not in done.stdout + done.stderr, done.stderr[-2000:]
        if code is not None:
            assert done.returncode == code, (args, done.returncode, done.stdout[-500:],
                                             done.stderr[-500:])
        return done

    def json(self, *args, **settings):
        return json.loads(self(*args, "--json", **settings).stdout)


@pytest.fixture
def cli(home):
    """Run commands as a person would."""
    return Cli(home)


@pytest.fixture
def run(home, capsys):
    """Run commands in this process: quicker; returns (code, stdout, stderr)."""

    def call(*args):
        code = m.main([str(a) for a in args])
        out = capsys.readouterr()
        return code, out.out, out.err

    return call
