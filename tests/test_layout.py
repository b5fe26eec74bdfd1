"""The file keeps the shape its docstring promises."""
import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import memory_tiered as m

SOURCE = Path(m.__file__).read_text(encoding="utf-8")
TREE = ast.parse(SOURCE)
BANNERS = [(SOURCE.count("\n", 0, found.start()) + 1, found[1])
           for found in re.finditer(r"^# =+ ([A-Z]+)$", SOURCE, re.M)]
FUNCTIONS = [n for n in ast.walk(TREE) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
CLASSES = [n for n in ast.walk(TREE) if isinstance(n, ast.ClassDef)]


def lines(node):
    return node.end_lineno - node.lineno + 1


def section(line):
    """The number of the section that holds a line; -1 before the first."""
    return next((i for i in reversed(range(len(BANNERS))) if BANNERS[i][0] <= line), -1)


def test_map_matches_banners():
    assert re.findall(r"^    ([A-Z]+) +\S", m.__doc__, re.M) == [name for _, name in BANNERS]


def test_no_section_uses_a_later_one():
    home = {}
    for node in TREE.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            home[node.name] = section(node.lineno)
        elif isinstance(node, ast.Assign):
            home.update((t.id, section(node.lineno)) for t in node.targets
                        if isinstance(t, ast.Name))
    later = []
    for top in TREE.body:
        annotations = {id(x) for f in ast.walk(top) for a in annotations_of(f) for x in ast.walk(a)}
        local = {a.arg for a in ast.walk(top) if isinstance(a, ast.arg)} | {
            n.id for n in ast.walk(top) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for node in ast.walk(top):
            if (isinstance(node, ast.Name) and node.id not in local and id(node) not in annotations
                    and home.get(node.id, -1) > section(top.lineno)):
                later.append((node.lineno, node.id))
    assert not later


def test_no_name_is_given_twice():
    names = [n.name for n in TREE.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))] + [
        t.id for n in TREE.body if isinstance(n, ast.Assign) for t in n.targets
        if isinstance(t, ast.Name)]
    assert sorted({n for n in names if names.count(n) > 1}) == []


def annotations_of(node):
    """Annotations are text at run time: they may name what comes later."""
    if isinstance(node, ast.FunctionDef):
        every = node.args.args + node.args.kwonlyargs + node.args.posonlyargs + [node.args.vararg,
                                                                                 node.args.kwarg]
        return [a.annotation for a in every if a
                and a.annotation] + ([node.returns] if node.returns else [])
    return [node.annotation] if isinstance(node, ast.AnnAssign) else []


def test_public_names_exist_and_are_documented():
    assert len(set(m.__all__)) == len(m.__all__)
    for name in m.__all__:
        value = getattr(m, name)
        assert isinstance(value, type) and issubclass(value, m.Record) or value.__doc__, name


def test_functions_stay_small():
    sizes = sorted(map(lines, FUNCTIONS))
    assert sizes[len(sizes) // 2] <= 10 and sizes[len(sizes) * 9 // 10] <= 30
    assert [f.name for f in FUNCTIONS if lines(f) > 60] == []


def test_classes_and_sections_stay_readable():
    assert [c.name for c in CLASSES if lines(c) > 300] == []
    ends = [line for line, _ in BANNERS[1:]] + [SOURCE.count("\n") + 1]
    assert {name: end - start for (start, name),
            end in zip(BANNERS, ends) if end - start > 900} == {}


def test_no_globals_and_few_broad_catches():
    assert not [n for n in ast.walk(TREE) if isinstance(n, ast.Global)]
    broad = [n for n in ast.walk(TREE) if isinstance(n, ast.ExceptHandler)
             and (n.type is None or isinstance(n.type, ast.Name) and n.type.id == "Exception")]
    assert len(broad) <= 8, [n.lineno for n in broad]


def test_top_imports_are_the_hot_set():
    top = {a.name for n in TREE.body if isinstance(n, ast.Import) for a in n.names}
    assert top == {"collections", "json", "os", "re", "sqlite3", "sys", "time"}


def test_lines_are_not_long():
    assert [(i, len(x)) for i, x in enumerate(SOURCE.splitlines(), 1) if len(x) > 100] == []


def test_public_functions_are_documented():
    bare = [f.name for f in FUNCTIONS if not f.name.startswith("_") and f.col_offset in (0, 4)
            and not ast.get_docstring(f)
            and any(f in c.body for c in [TREE, *CLASSES])]
    assert bare == []


def test_doctests():
    import doctest

    assert doctest.testmod(m).failed == 0


@pytest.mark.parametrize("name", sorted(m.COMMANDS))
def test_every_command_has_help_and_an_example(name):
    text, _, example = m.COMMANDS[name][0].__doc__.partition("\n\n")
    assert "· " in text and "memory_tiered.py %s" % name in example


def test_import_is_light_and_silent():
    code = "import sys; sys.path.insert(0, %r); import memory_tiered; print(*sys.modules)" % str(
        Path(m.__file__).parent)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True,
                          check=True)
    heavy = {"argparse", "typing", "dataclasses", "http.server", "urllib.request", "logging",
             "subprocess", "hashlib", "pathlib", "tempfile", "shutil", "difflib"}
    assert not heavy & set(done.stdout.split()) and not done.stderr


def test_help_starts_without_site_packages():
    done = subprocess.run([sys.executable, "-I", "-S", m.__file__, "--help"], capture_output=True,
                          check=True)
    assert b"add-l1" in done.stdout
