"""install and uninstall: other people's files keep every byte that is not ours."""
import json
import os
import subprocess
import sys

import pytest

import memory_tiered as m

HOOKS = {"Stop": {"hooks": [{"type": "command", "command": "/usr/bin/python3",
                             "args": ["-I", "/a/hook.py", "--agent", "claude"], "timeout": 5}]}}
FOREIGN = {"hooks": {"Stop": [{"matcher": "",
                               "hooks": [{"type": "command", "command": "say 完成"}]}]}}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home with a blank, Chinese and quotes in its name, and no host's variables."""
    path = tmp_path / "家 it's \"my\" $HOME"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setenv("USERPROFILE", str(path))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "HERMES_HOME", "OPENCLAW_STATE_DIR",
                 "OPENCLAW_CONFIG_PATH",
                 "XDG_CONFIG_HOME", "APPDATA", "MEMORY_TIERED_DB", "MEMORY_TIERED_POOL",
                 "MEMORY_TIERED_VAULT", "MEMORY_TIERED_APP"):
        monkeypatch.delenv(name, raising=False)
    return path


def tree(folder):
    """{relative path: (bytes or link target, mode)} of everything below a folder."""
    found = {}
    for base, dirs, files in os.walk(folder):
        for name in dirs + files:
            path = os.path.join(base, name)
            if os.path.islink(path):
                content = os.readlink(path)
            else:
                content = None if os.path.isdir(path) else open(path, "rb").read()
            found[os.path.relpath(path, folder)] = content, oct(os.lstat(path).st_mode & 0o777)
    return found


def install(names=("all",), **more):
    return m.install_agents(names, m.Places(), **more)


def uninstall(names=("all",), **more):
    return m.uninstall_agents(names, m.Places(), **more)


def actions(facts):
    return {fact["action"] for fact in facts}


# -- JSON as text

JSON_TEXTS = [
    '{}', '{}\n', '{ }', '{\n}\n', '{"a": 1}', '{"a":1,"b":[1,2,{"c":null}]}\n', '{\n  "a": 1\n}\n',
    '{\n\t"a": {\n\t\t"b": []\n\t}\n}',
    '{\r\n    "a": "é\\u4e2d\\"}",\r\n    "z": true\r\n}\r\n',
    '{"中文": {"x": {}}, "s": "a, }]{ // no comment"}',
    json.dumps(FOREIGN, ensure_ascii=False, indent=2), json.dumps(FOREIGN, indent="\t") + "\n",
    json.dumps(FOREIGN),
    '{"hooks": {"Stop": [], "Start": [{"hooks": []}]}}', '{\n  "hooks": {},\n  "mcpServers": {}\n}',
]


@pytest.mark.parametrize("text", JSON_TEXTS)
@pytest.mark.parametrize("edit",
                         [m.JsonMember("f", ("mcpServers", "memory-tiered"),
                                       {"command": "x", "args": ["-I"]}),
                          m.HookGroups("f", HOOKS)], ids=["member", "hooks"])
def test_json_put_then_drop_gives_the_text_back(text, edit):
    put = edit.put(text)
    assert json.loads(put) != json.loads(text)
    assert edit.put(put) == put
    dropped = edit.drop(put, text)
    assert json.loads(dropped) == json.loads(text)
    if text not in ("{ }", "{\n}\n"):
        assert dropped == text
    for key, value in json.loads(text).items():
        assert key in ("hooks", "mcpServers") or json.loads(put)[key] == value


@pytest.mark.parametrize("text", [
    "// head\n{\n  gateway: { mode: 'local', }, // note, with comma\n  /* }{ */ \"mcp\": { "
    "servers: { other: { command: \"x\", args: ['a',], n: +1.5e3 }, } },\n}\n",
    "{a:1}", "{a:1,}", "{\n  a: Infinity, // last\n}", "{'mcp': {servers: {}}}",
])
def test_json5_put_then_drop_gives_the_text_back(text):
    edit = m.JsonMember("f", ("mcp", "servers", "memory-tiered"), {"command": "x"}, strict=False)
    put = edit.put(text)
    assert m.JsonText(put).find(("mcp", "servers", "memory-tiered", "command")).value == "x"
    assert edit.put(put) == put
    assert edit.drop(put, text) == text


@pytest.mark.parametrize("text, line", [
    ('{"a": 1,}', 1), ('{\n"a": 1\n"b": 2}', 3), ("{", 1), ("[]x", 1), ('{"a": }', 1),
    ("nonsense", 1), ('"hooks"', 1), ("[1]", 1),
    ('{"mcpServers": []}', 1), ('{\n"mcpServers": "x"}', 2),
])
def test_json_that_cannot_be_extended_is_an_error_with_the_line(text, line):
    with pytest.raises(m.UsageError, match=r"/f\.json.*line %d" % line):
        m.JsonMember("/f.json", ("mcpServers", "x"), {}).put(text)


def test_json_value_is_replaced_in_place_and_equal_value_keeps_its_layout():
    edit = m.JsonMember("f", ("mcpServers", "x"), {"command": "new", "args": [1]})
    assert edit.put('{"mcpServers":{"x":{"command":"old"},"y":2}}') .endswith(',"y":2}}')
    laid = '{"mcpServers":{"x":{"args":[1],\n"command":"new"},"y":2}}'
    assert edit.put(laid) == laid


# -- hooks

def test_hooks_of_older_installations_are_updated_in_place_and_strangers_stay():
    old = {"hooks": [{"type": "command",
                      "command": "[ -f '/x y/hook.py' ] || exit 0; exec python3 '/x y/hook.py' "
                                 "--agent claude"}]}
    mine = {"type": "command", "command": "p",
            "args": ["-c", "…", "/z/hook.py", "--agent", "claude"]}
    other = {"type": "command", "command": "node /x/hook.py.js --agent"}
    theirs, left = FOREIGN["hooks"]["Stop"], [{"hooks": [other]}]
    text = json.dumps({"hooks": {"Stop": [old, theirs[0]], "Gone": [old],
                                 "Mixed": [{"hooks": [other, mine]}]}}, indent=1)
    edit = m.HookGroups("f", HOOKS)
    put, dropped = json.loads(edit.put(text)), json.loads(edit.drop(text, None))
    assert put["hooks"] == {"Stop": [HOOKS["Stop"], theirs[0]], "Mixed": left}
    assert dropped["hooks"] == {"Stop": theirs, "Mixed": left}


def test_hooks_installed_twice_by_hand_become_one():
    text = json.dumps({"hooks": {"Stop": [HOOKS["Stop"], HOOKS["Stop"]]}})
    put = json.loads(m.HookGroups("f", HOOKS).put(text))
    assert put == {"hooks": {"Stop": [HOOKS["Stop"]]}}


# -- TOML

TOML = m.TomlTable("/c.toml", "mcp_servers.memory_tiered",
                   {"command": "/a b/python3", "args": ["-I", 'x"y\\z', "中"]})


@pytest.mark.parametrize("text", [
    "", 'model = "x"\n', 'model = "x"', '# only a comment\n', 'a = 1\r\n\r\n[b]\r\nc = 2\r\n',
    '[mcp_servers.other]\ncommand = "x"\n\n\n',
    '[[hooks.Stop]]\n[[hooks.Stop.hooks]]\ntype = "command"\n# end',
])
def test_toml_put_then_drop_gives_the_text_back(text):
    put = TOML.put(text)
    assert put.startswith(text) and TOML.put(put) == put
    assert TOML.drop(put, text).rstrip("\r\n") == text.rstrip("\r\n")
    if sys.version_info >= (3, 11):
        import tomllib
        assert tomllib.loads(put)["mcp_servers"]["memory_tiered"]["args"][1] == 'x"y\\z'


def test_toml_what_other_programs_write_behind_our_table_stays():
    put = TOML.put("a = 1\n")
    theirs = '[mcp_servers.memory_tiered.tools.save_memory]\napproval_mode = "approve"\n'
    later = put + theirs + '\n# mine\n[hooks.state]\nx = 1\n'
    assert TOML.put(later) == later
    assert TOML.drop(later, None) == 'a = 1\n\n# mine\n[hooks.state]\nx = 1\n'


def test_toml_older_table_is_replaced():
    put = TOML.put('[mcp_servers.memory_tiered]\ncommand = "old"\n\n[z]\na = 1\n')
    assert put.count("memory_tiered]") == 1 and "old" not in put and "[z]\na = 1\n" in put


@pytest.mark.parametrize("text, line", [('a = 1\nmcp_servers = { x = {} }\n', 2)] + (
    [("a = 1\nb = [ 1 2\n", 2), ("x y\n", 1)] if sys.version_info >= (3, 11) else []))
def test_toml_that_cannot_be_extended_is_an_error_with_the_line(text, line):
    with pytest.raises(m.UsageError, match=r"/c\.toml.*line %d" % line):
        TOML.put(text)


# -- YAML

YAML = m.YamlKey("/c.yaml", "memory", "provider", "memory_tiered")


@pytest.mark.parametrize("text, put", [
    ("", "memory:\n  provider: memory_tiered\n"),
    ("# c\nmodel:\n  default: x\n",
     "# c\nmodel:\n  default: x\nmemory:\n  provider: memory_tiered\n"),
    ("a: 1", "a: 1\nmemory:\n  provider: memory_tiered\n"),
    ("memory:\n    limit: 5 # five\nz: 1\n",
     "memory:\n    provider: memory_tiered\n    limit: 5 # five\nz: 1\n"),
    ("memory:  # ours\n  # why\n\n  provider: 'honcho' # old\n  x: {provider: no}\n",
     "memory:  # ours\n  # why\n\n  provider: memory_tiered # old\n  x: {provider: no}\n"),
    ("memory:\n  deep:\n    provider: no\n  provider:\nz: 1",
     "memory:\n  deep:\n    provider: no\n  provider: memory_tiered\nz: 1"),
    ("memory: {}\n", "memory:\n  provider: memory_tiered\n"),
    ("memory: null # none\nb:\n- 1\n", "memory: # none\n  provider: memory_tiered\nb:\n- 1\n"),
    ("memory:\r\n  provider: \"\"\r\nother:\r\n  - x\r\n",
     "memory:\r\n  provider: memory_tiered\r\nother:\r\n  - x\r\n"),
    ("\"memory\":\n  'provider': x\n", "\"memory\":\n  'provider': memory_tiered\n"),
    ("memory:\n  provider: memory_tiered\n", "memory:\n  provider: memory_tiered\n"),
    ("text: |\n  memory:\n  \tx\nmemory_x:\n  provider: y\n",
     "text: |\n  memory:\n  \tx\nmemory_x:\n  provider: y\nmemory:\n  provider: memory_tiered\n"),
])
def test_yaml_put_and_drop(text, put):
    assert YAML.put(text) == put and YAML.put(put) == put
    if "{}" not in text and "null" not in text and put != text:
        assert YAML.drop(put, text).rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize("text, line",
                         [("a: 1\n\tb: 2\n", 2), ("a: 1\nnonsense\n", 2),
                          ("memory: {provider: x}\n", 1),
                          ("memory: [1]\n", 1), ("a: 1\nmemory: &x\n", 2)])
def test_yaml_that_cannot_be_edited_is_an_error_with_the_line(text, line):
    with pytest.raises(m.UsageError, match=r"/c\.yaml.*line %d" % line):
        YAML.put(text)


# -- Markdown

@pytest.mark.parametrize("text", ["", "# Mine\n", "# Mine", "# Mine\n\n\n", "# 我的\r\n\r\ntext\r\n"])
def test_section_put_then_drop_gives_the_text_back(text):
    edit = m.MarkedSection("f", m.ADVICE_TEMPLATE)
    put = edit.put(text)
    assert put.startswith(text) and edit.put(put) == put
    assert put.count("\r\n") in (0, put.count("\n"))
    assert edit.drop(put, text).rstrip("\r\n") == text.rstrip("\r\n")
    assert edit.drop(put + "\n# Later\n", text).endswith("\n# Later\n")


# -- whole installations

STARTS = {
    "missing": None, "empty": b"", "blank": b" \n\n", "object": b"{}", "object_nl": b"{}\n",
    "bom": b"\xef\xbb\xbf{\n  \"a\": 1\n}\n", "crlf": b"{\r\n  \"a\": 1\r\n}\r\n",
    "tabs": b"{\n\t\"a\": {\n\t\t\"b\": 1\n\t}\n}",
    "compact": b'{"a":1,"hooks":{},"mcpServers":{"o":{"command":"x"}}}',
    "foreign": json.dumps(FOREIGN, indent=4).encode(),
    "order": json.dumps({"z": 1, "mcpServers": {"z": {}}, "a": FOREIGN["hooks"]},
                        ensure_ascii=False).encode(),
}
JSON_FILES = [".claude/settings.json", ".claude.json", ".config/Claude/claude_desktop_config.json",
              ".codex/hooks.json", ".openclaw/openclaw.json"]
OTHERS = {".claude/CLAUDE.md": b"# Mine", ".codex/AGENTS.md": b"\xef\xbb\xbf# Codex\r\n",
          ".codex/config.toml": b'# c\nmodel = "x" # y\n\n[tui]\nx=1',
          ".hermes/config.yaml": b"# c\nmodel:\n  default: x   # y\nmemory:\n  provider: honcho # "
                                 b"was\n"}


def fill(home, start, others=True):
    for name in JSON_FILES:
        if start is not None:
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(start)
            path.chmod(0o640)
    for name, data in OTHERS.items() if others else ():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(data)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("others", [True, False])
def test_uninstall_leaves_every_byte_as_before(home, start, others):
    fill(home, STARTS[start], others)
    before = tree(home)
    assert actions(install(dry_run=True)) <= {"created", "updated", "next"} and tree(home) == before
    install()
    installed = tree(home)
    for name in JSON_FILES:
        assert json.loads((home / name).read_bytes().decode("utf-8-sig"))
        if start != "missing":
            assert oct((home / name).stat().st_mode & 0o777) == "0o640"
            assert (home / name).read_bytes().startswith(m.BOM) == (start == "bom")
    assert actions(install()) == {"unchanged", "next"} and tree(home) == installed
    assert actions(uninstall(dry_run=True)) <= {"restored", "removed"} and tree(home) == installed
    assert actions(uninstall()) <= {"restored", "removed"}
    assert tree(home) == before
    assert actions(uninstall()) == {"absent"}


def test_agents_one_by_one_share_app_and_skill(home):
    before = tree(home)
    for name in m.HOSTS:
        install([name])
    skill = home / ".agents/skills/memory-tiered/SKILL.md"
    uninstall(["codex"])
    assert skill.exists()
    uninstall(["openclaw"])
    assert not skill.exists() and (home / "agent-memory/app/hook.py").exists()
    uninstall(["hermes", "claude", "claude-desktop"])
    assert tree(home) == before


@pytest.mark.parametrize("without_app", [False, True])
def test_uninstall_after_changes_takes_out_only_our_part(home, without_app):
    fill(home, STARTS["foreign"])
    install()
    expected = {}
    for name in JSON_FILES:
        value = json.loads((home / name).read_text())
        (home / name).write_text(json.dumps({**value, "mine": ["后来", 1]}, ensure_ascii=False,
                                            indent=3))
        expected[name] = {**FOREIGN, "mine": ["后来", 1]}
    for name, more in {".claude/CLAUDE.md": "# Later\n", ".codex/config.toml": "[later]\na = 1\n",
                       ".hermes/config.yaml": "later: 1\n"}.items():
        (home / name).write_bytes((home / name).read_bytes() + more.encode())
    if without_app:
        import shutil
        shutil.rmtree(home / "agent-memory")
    uninstall()
    assert {name: json.loads((home / name).read_text()) for name in JSON_FILES} == expected
    assert (home / ".claude/CLAUDE.md").read_text() == "# Mine\n# Later\n"
    assert (home / ".codex/config.toml").read_text(
        ) == '# c\nmodel = "x" # y\n\n[tui]\nx=1\n[later]\na = 1\n'
    was = "  provider: honcho # was\n"
    assert (home / ".hermes/config.yaml").read_text() == "# c\nmodel:\n  default: x   # y\n" + (
        "" if without_app else "memory:\n" + was) + "later: 1\n"
    left = {name for name in tree(home) if "memory" in name}
    assert left == set() and not (home / ".agents").exists() or without_app


def test_created_file_with_later_words_of_others_stays(home):
    install(["claude"])
    path = home / ".claude/settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model": "opus"}))
    uninstall(["claude"])
    assert json.loads(path.read_text()) == {"model": "opus"}


def test_created_file_rewritten_by_its_host_goes_when_nothing_else_is_in_it(home):
    install(["claude"])
    path = home / ".claude/settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=7))
    uninstall(["claude"])
    assert tree(home) == {}


def test_older_installation_is_updated_and_still_comes_out_clean(home, monkeypatch):
    fill(home, STARTS["tabs"])
    before = tree(home)
    with monkeypatch.context() as older:
        older.setattr(m, "HOOK_LAUNCHER", "# memory_tiered older\n")
        older.setattr(m, "ADVICE_TEMPLATE", "OLD-WORDS")
        older.setattr(m, "CLAUDE_EVENTS", {"Stop": (99, ()), "PreCompact": (1, ())})
        older.setattr(m, "HERMES_TEMPLATE", "# memory_tiered older\n")
        install()
    assert [s["current"] for s in m.agent_status(["all"], m.Places())] == [False] * 5
    assert "updated" in actions(install())
    assert "OLD-WORDS" not in "".join(str(value) for value in tree(home / ".claude").values())
    assert all(s["current"] and s["installed"] for s in m.agent_status(["all"], m.Places()))
    uninstall()
    assert tree(home) == before


def test_update_of_a_changed_file_keeps_the_changes(home, monkeypatch):
    fill(home, STARTS["foreign"])
    with monkeypatch.context() as older:
        older.setattr(m, "CLAUDE_EVENTS", {"Stop": (99, ()), "PreCompact": (1, ())})
        install(["claude"])
    path = home / ".claude/settings.json"
    path.write_text(path.read_text().replace("{", '{\n    "mine": 1,', 1))
    install(["claude"])
    assert list(json.loads(path.read_text())["hooks"]) == list(m.CLAUDE_EVENTS)[-2:-1] + [
        e for e in m.CLAUDE_EVENTS if e != "Stop"]
    uninstall(["claude"])
    assert json.loads(path.read_text()) == {"mine": 1, **FOREIGN}


def test_symbolic_link_is_written_through(home, tmp_path):
    real = tmp_path / "dotfiles" / "s.json"
    real.parent.mkdir()
    real.write_bytes(b'{"a": 1}')
    (home / ".claude").mkdir()
    os.symlink(real, home / ".claude/settings.json")
    os.symlink(tmp_path / "dotfiles/new.md", home / ".claude/CLAUDE.md")  # points nowhere yet
    install(["claude"])
    assert (home / ".claude/settings.json").is_symlink() and "hooks" in json.loads(real.read_text())
    assert (home / ".claude/CLAUDE.md").is_symlink() and (tmp_path / "dotfiles/new.md").exists()
    uninstall(["claude"])
    assert real.read_bytes() == b'{"a": 1}' and (home / ".claude/settings.json").is_symlink()
    assert (home / ".claude/CLAUDE.md").is_symlink() and not (tmp_path / "dotfiles/new.md").exists()


@pytest.mark.parametrize("name, data", [
    (".claude/settings.json", b'{"a": 1,}'), (".claude/settings.json", b'\xff\xfe{\x00}\x00'),
    (".claude.json", b"{"),
    (".codex/hooks.json", b'{"hooks": []}'), (".hermes/config.yaml", b"\tx\n"),
    (".openclaw/openclaw.json", b"{a: }"),
    (".codex/config.toml", b"mcp_servers = {}\n"), (".claude/CLAUDE.md", b"\xff"),
])
def test_a_file_that_cannot_be_understood_stops_everything_before_the_first_byte(home, name, data):
    fill(home, STARTS["foreign"])
    (home / name).write_bytes(data)
    before = tree(home)
    with pytest.raises(m.UsageError) as caught:
        install()
    assert name.split("/")[-1] in str(caught.value) and " · " in str(caught.value)
    assert tree(home) == before


def test_directory_and_locked_file_are_refused(home):
    (home / ".claude/settings.json").mkdir(parents=True)
    with pytest.raises(m.UsageError, match="settings.json"):
        install(["claude"])
    os.rmdir(home / ".claude/settings.json")
    (home / ".claude/settings.json").write_bytes(b"{}")
    (home / ".claude/settings.json").chmod(0o444)
    before = tree(home)
    with pytest.raises(m.UsageError, match="read-only"):
        install(["claude"])
    assert tree(home) == before


def test_a_full_disk_is_one_error_and_what_was_written_comes_out_clean(home, monkeypatch):
    fill(home, STARTS["foreign"])
    before, write = tree(home), m.write_file

    def full(path, data, mode=0o600):
        if path.endswith("hooks.json"):
            raise OSError(28, "No space left on device")
        write(path, data, mode)

    with monkeypatch.context() as disk:
        disk.setattr(m, "write_file", full)
        with pytest.raises(m.TieredError, match="No space left"):
            install()
    uninstall()
    assert tree(home) == before


def test_project_scope_touches_the_repository_only(home, tmp_path, monkeypatch):
    project = tmp_path / "仓库 a"
    (project / "src").mkdir(parents=True)
    (project / ".git").mkdir()
    monkeypatch.chdir(project / "src")
    before, at_home = tree(project), tree(home)
    facts = install(["claude", "codex"], scope="project")
    assert "do not commit" in facts[-1]["note"]
    assert set(json.loads((project / ".mcp.json").read_text())["mcpServers"]) == {"memory-tiered"}
    names = {name for name, (content, _) in tree(project).items() if content is not None}
    assert names == {".mcp.json", "CLAUDE.md", "AGENTS.md", ".claude/settings.json",
                     ".codex/hooks.json", ".codex/config.toml",
                     ".agents/skills/memory-tiered/SKILL.md"}
    assert {name.split("/")[0] for name in tree(home)} == {"agent-memory"}
    install(["claude"])
    uninstall(["claude"])
    assert (home / "agent-memory/app/hook.py").exists()
    uninstall(["all"], scope="project")
    assert tree(project) == before and tree(home) == at_home
    with pytest.raises(m.UsageError, match="hermes"):
        install(["hermes"], scope="project")


def test_unknown_agent_is_a_usage_error(home):
    with pytest.raises(m.UsageError, match="claude-desktop"):
        install(["clippy"])
    assert install(["claude-code"], dry_run=True)


def test_places_that_are_not_the_default_are_written_into_the_commands(home):
    places = m.Places({"db": str(home / "别处 it's/s.db"), "app": str(home / "app dir")})
    m.install_agents(["claude", "codex"], places)
    settings = json.loads((home / ".claude/settings.json").read_text())
    args = settings["hooks"]["Stop"][0]["hooks"][0]["args"]
    assert args[args.index("--db") + 1] == str(home / "别处 it's/s.db") and "--pool" not in args
    hooks = json.loads((home / ".codex/hooks.json").read_text())["hooks"]
    line = hooks["Stop"][0]["hooks"][0]["command"]
    (home / "app dir/hook.py").write_text("import sys; print(sys.argv[1:], sys.stdin.read())")
    ran = subprocess.run(["sh", "-c", line], input=b"{}", capture_output=True)
    assert ran.stdout.decode() == "%s {}\n" % ["--agent", "codex", "--event", "Stop",
                                               "--enqueue-summary", "--db",
                                               str(home / "别处 it's/s.db")]
    hook = settings["hooks"]["Stop"][0]["hooks"][0]
    ran = subprocess.run([hook["command"], *hook["args"]], input=b"{}", capture_output=True)
    assert ran.stdout.decode() == "%s {}\n" % ["--agent", "claude", "--event", "Stop",
                                               "--enqueue-summary", "--db",
                                               str(home / "别处 it's/s.db")]
    m.uninstall_agents(["claude", "codex"], places)
    assert set(tree(home)) == {"app dir", "app dir/hook.py"} or not tree(home)


@pytest.mark.parametrize("agent, file",
                         [("claude", ".claude/settings.json"), ("codex", ".codex/hooks.json")])
def test_hooks_exit_0_when_the_program_is_gone_or_broken(home, agent, file):
    install([agent])
    groups = json.loads((home / file).read_text())["hooks"]
    app = home / "agent-memory/app"

    def run():
        for event, (group,) in groups.items():
            hook = group["hooks"][0]
            words = [hook["command"], *hook["args"]] if "args" in hook else ["sh", "-c",
                                                                             hook["command"]]
            ran = subprocess.run(words, input=b"{}", capture_output=True, cwd=home)
            yield event, ran.returncode, ran.stdout

    (app / "memory_tiered.py").write_text("def (\n")
    assert set(run()) == {(event, 0, b"") for event in groups}
    (app / "memory_tiered.py").unlink()
    assert set(run()) == {(event, 0, b"") for event in groups}
    (app / "hook.py").unlink()
    assert set(run()) == {(event, 0, b"") for event in groups}


def test_byte_code_is_checked_by_hash(home):
    install(["claude"])
    cache, = (home / "agent-memory/app/__pycache__").glob("memory_tiered.*.pyc")
    assert int.from_bytes(cache.read_bytes()[4:8], "little") == 0b11


def test_pinned_python_is_kept_while_it_works(home, monkeypatch):
    install(["claude"])
    with monkeypatch.context() as other:
        other.setattr(sys, "executable", "/other/python3")
        assert actions(install(["claude"])) == {"unchanged"}
    manifest = home / "agent-memory/app/install.json"
    manifest.write_text(manifest.read_text().replace(json.dumps(sys.executable), '"/gone/python3"'))
    with monkeypatch.context() as other:
        other.setattr(sys, "executable", "/other/python3")
        install(["claude"])
    hooks = json.loads((home / ".claude/settings.json").read_text())["hooks"]
    assert hooks["Stop"][0]["hooks"][0]["command"] == "/other/python3"


def test_pinned_python_is_never_a_shim(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/home/u/.pyenv/shims/python3")
    assert m.pinned_python().startswith(sys.base_exec_prefix)


def test_running_from_app_neither_copies_nor_removes_the_program(home, monkeypatch):
    app = home / "agent-memory/app"
    app.mkdir(parents=True)
    (app / "memory_tiered.py").write_bytes(open(m.__file__, "rb").read())
    monkeypatch.setattr(m, "__file__", str(app / "memory_tiered.py"))
    before = tree(home)
    install(["claude"])
    uninstall(["claude"])
    assert {k: v for k, v in tree(home).items() if "pyc" not in k} == before


def test_status(home):
    found = m.agent_status(["all"], m.Places())
    assert [(s["installed"], s["current"]) for s in found] == [(False, False)] * 5
    install(["codex"])
    status, = m.agent_status(["codex"], m.Places())
    assert status["installed"] and status["current"] and status["trusted"] is False
    assert "/hooks" in status["note"]
    hooks = home / ".codex/hooks.json"
    config = home / ".codex/config.toml"
    events = ("session_start", "user_prompt_submit", "post_tool_use", "subagent_stop", "stop",
              "session_end")
    config.write_text(config.read_text()
                      + "".join('\n[hooks.state.%s]\ntrusted_hash = "sha256:0"\n' % json.dumps(
                          "%s:%s:0:0" % (hooks, event), ensure_ascii=False) for event in events))
    status, = m.agent_status(["codex"], m.Places())
    assert status["current"] and status["trusted"] is True
    (home / "agent-memory/app/hook.py").unlink()
    assert m.agent_status(["codex"], m.Places())[0]["current"] is False
    hooks.write_text("{")
    assert "hooks.json" in m.agent_status(["codex"], m.Places())[0]["note"]


def test_replaced_provider_of_hermes_is_named(home):
    fill(home, None)
    assert "honcho" in install(["hermes"])[-1]["note"]
    assert actions(install(["hermes"])) == {"unchanged"}


# -- the memory provider for Hermes


@pytest.fixture
def provider(home, monkeypatch):
    """The installed plugin, loaded as Hermes does, with its base class."""
    import importlib.util
    import types

    install(["hermes"])
    base = types.ModuleType("agent.memory_provider")
    base.MemoryProvider = type("MemoryProvider", (),
                               {"queue_prefetch": lambda self, query, **more: None})
    monkeypatch.setitem(sys.modules, "agent", types.ModuleType("agent"))
    monkeypatch.setitem(sys.modules, "agent.memory_provider", base)
    path = home / ".hermes/plugins/memory_tiered/__init__.py"
    head = path.read_text()[:8192]
    assert "register_memory_provider" in head or "MemoryProvider" in head
    spec = importlib.util.spec_from_file_location("_hermes_user_memory.memory_tiered", str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = []
    module.register(types.SimpleNamespace(register_memory_provider=made.append))
    assert isinstance(made[0], base.MemoryProvider) and made[0].is_available()
    made[0].initialize("s1", platform="cli", hermes_home=str(home), agent_context="primary",
                       status_callback=None)
    return made[0]


TURN = [
    {"role": "user", "content": "旧的问题"}, {"role": "assistant", "content": "旧的回答"},
    {"role": "user", "content": "部署脚本在哪里？",
     "api_content": "部署脚本在哪里？ <memory-context>秘密</memory-context>"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "c1", "function": {"name": "terminal",
                                  "arguments": "{\"command\": \"ls deploy scripts and more of "
                                               "them\"}"}},
        {"id": "c2", "function": {"name": "terminal", "arguments": "not json"}}]},
    {"role": "tool", "tool_call_id": "c1",
     "content": "deploy/release.sh deploy/rollback.sh deploy/check-health.sh"},
    {"role": "tool", "tool_call_id": "c2", "content": "bash: not: command not found"},
    {"role": "assistant", "content": "部署脚本在 deploy/release.sh，回滚用 deploy/rollback.sh，健康检查用 "
                                     "check-health。"},
]


def test_provider_captures_a_turn_once(home, provider):
    import threading

    for _ in range(2):  # from another thread, and twice
        thread = threading.Thread(target=provider.sync_turn, args=("部署脚本在哪里？", TURN[-1]["content"]),
                                  kwargs={"session_id": "s1", "messages": TURN})
        thread.start()
        thread.join()
    pool = m.Pool(m.Places().pool)
    found = [(e.session_id, e.event_type, e.tool_name) for e in reversed(pool.events.recent())]
    assert found[:4] == [("hermes:s1", "prompt", None), ("hermes:s1", "observation", "terminal"),
                         ("hermes:s1", "error", "terminal"),
                         ("hermes:s1", "answer", None)] or len(found) >= 4
    assert [e for e in found if e[1] in ("observation", "error")].__len__() == 2
    assert "秘密" not in "".join(e.content_json for e in pool.events.recent())
    provider.on_session_end([])
    provider.shutdown()
    assert pool.sessions.get("hermes:s1").ended_at
    assert not (home / ".hermes/state/memory-tiered.log").exists()


def test_provider_buffer_is_written_when_full(provider):
    pool = m.Pool(m.Places().pool)
    for n in range(4):
        provider.note("pre_llm_call", "s1", user_message="问题 %d" % n)
    assert not pool.events.recent()
    provider.note("pre_llm_call", "s1", user_message="问题 4")
    assert len(pool.events.recent()) == 5
    provider.note("pre_llm_call", "s1", user_message="长" * 2000)
    assert len(pool.events.recent()) == 6


def test_provider_mirrors_the_notebook_without_doubles(provider):
    provider.on_memory_write("add", "user", "用户的项目代号是海豚，偏好简短的中文回答", metadata={"session_id": "s1"})
    provider.on_memory_write("add", "user", "用户的项目代号是海豚，偏好简短的中文回答。", metadata=None)
    provider.on_memory_write("replace", "user", "用户的项目代号是海豚，偏好简短的英文回答", metadata=None)
    provider.on_memory_write("remove", "user", "用户的项目代号是海豚", metadata=None)
    memory = m.Memory()
    stored = memory.list(status=None)
    found = sorted((r.text[-4:], r.status) for r in stored)
    assert found == [("中文回答", "deprecated"), ("英文回答", "active")]
    assert {r.type for r in stored} == {"user_profile"}


def test_provider_does_nothing_in_a_subagent_and_never_raises(home, provider):
    provider.initialize("cron1", agent_context="cron")
    provider.sync_turn("问题", "回答", session_id="cron1", messages=TURN)
    provider.on_memory_write("add", "memory", "定时任务的话不该记下来")
    assert not m.Pool(m.Places().pool).events.recent() and not m.Memory().list()
    provider.memory = None
    assert provider.prefetch("x") == "" and provider.on_pre_compress([]) == ""
    assert "hermes prefetch" in (home / ".hermes/state/memory-tiered.log").read_text()
    assert "error" in json.loads(provider.handle_tool_call("search_memory", {}))


def test_provider_without_the_program_is_not_available(home, provider):
    (home / "agent-memory/app/memory_tiered.py").unlink()
    assert not provider.is_available()


def test_provider_tells_new_things_only(home, provider):
    m.Memory().add(2, "部署脚本放在 deploy/release.sh，回滚用 rollback.sh", category="ops", importance=0.9)
    first = provider.prefetch("部署脚本在哪里", session_id="")
    assert "release.sh" in first
    assert provider.prefetch("部署脚本在哪里", session_id="") == ""
    provider.on_session_switch("s2", parent_session_id="s1", reset=True)
    assert "release.sh" in provider.prefetch("部署脚本在哪里", session_id="")
