"""HOOKS: the launcher as a host runs it, with -I -S, on real and on broken input."""
import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import memory_tiered as m

PAYLOADS = {
    host: json.loads((Path(__file__).parent / "payloads" / (host + ".json")).read_text(
        encoding="utf-8"))
            for host in ("claude", "codex", "hermes", "gemini")}
SID = "11111111-2222-4333-8444-000000000001"


@pytest.fixture(scope="session")
def app(tmp_path_factory):
    """The program, its part for hooks and the launcher, as `install` writes them."""
    folder = tmp_path_factory.mktemp("app")
    program = Path(m.__file__).read_text(encoding="utf-8")
    for name, text in (("memory_tiered.py", program),
                       *((name, m.program_part(program, names))
                         for name, names in m.PROGRAM_PARTS.items()),
                       ("hook.py", m.HOOK_LAUNCHER.lstrip())):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


class Host:
    """Calls the hook as a host would."""

    def __init__(self, app, home):
        self.home, self.pool, self.db = home, str(home / "state" / "pool.db"), str(
            home / "state" / "state.db")
        self.log = str(home / "state" / m.LOG_NAME)
        self.command = [sys.executable, "-I", "-S", str(app / "hook.py"), "--db", self.db, "--pool",
                        self.pool]
        self.env = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}

    def __call__(self, payload, agent="claude", *args, env=None):
        data = payload if isinstance(payload,
                                     bytes) else json.dumps(payload,
                                                            ensure_ascii=False).encode("utf-8",
                                                                                       "surrogatepass")
        done = subprocess.run([*self.command, "--agent", agent, *args], input=data,
                              capture_output=True, env={**self.env, **(env or {})}, timeout=60)
        assert done.returncode == 0 and done.stderr == b"", done.stderr
        return done.stdout.decode("utf-8")

    def start(self, payload):
        process = subprocess.Popen([*self.command, "--agent", "claude"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.env)
        process.stdin.write(json.dumps(payload).encode())
        process.stdin.close()
        process.stdin = None
        return process

    def stored(self):
        pool = m.Pool(self.pool)
        try:
            return list(pool.events.iterate())
        finally:
            pool.close()

    def logged(self):
        return m.read_log(self.log)


@pytest.fixture
def host(app, home):
    return Host(app, home)


def failure(n, **fields):
    return {"session_id": "s1", "cwd": "/tmp", "hook_event_name": "PostToolUseFailure",
            "tool_name": "Bash",
            "tool_input": {"command": "deploy %s" % n}, "tool_use_id": "toolu_%s" % n,
            "error": "Exit code 3\nmarker%s failed" % n, **fields}


# -- whole conversations

def test_a_session_of_claude_code_is_captured(host):
    rows = PAYLOADS["claude"]
    for n, name in enumerate(("SessionStart-startup", "UserPromptSubmit", "PreToolUse-Bash",
                              "PostToolUse-Bash", "PostToolUseFailure-Bash",
                              "PostToolUse-Read", "SubagentStart", "PostToolUse-Bash-in_subagent",
                              "SubagentStop-internal", "Stop", "SessionEnd")):
        payload = {**rows[name],
                   **({"tool_use_id": "t%d" % n} if "tool_use_id" in rows[name] else {})}
        assert host(payload, "claude-code", "--enqueue-summary",
                    env={"MEMORY_TIERED_NOW": "2026-03-01T12:00:%02dZ" % n}) == ""
    assert [e.event_type for e in host.stored()] == ["prompt", "observation", "error",
                                                     "observation", "observation", "answer"]
    pool = m.Pool(host.pool)
    session = pool.sessions.get("claude:" + SID)
    assert session.title == "购物车的总价不对，请修复并补一个测试" and session.started_at == "2026-03-01 12:00:00"
    assert session.ended_at == "2026-03-01 12:00:10"
    assert [s.id for s in pool.sessions.due(0)] == [session.id]
    assert len(pool.events.of(session.id)) == 6
    pool.close()
    assert host.logged() == []


def test_delivered_twice_is_stored_once(host):
    for payload in (PAYLOADS["codex"]["PostToolUse-Bash"], PAYLOADS["codex"]["UserPromptSubmit"],
                    PAYLOADS["codex"]["Stop"]) * 2:
        host(payload, "codex")
    assert [e.event_type for e in host.stored()] == ["error", "prompt", "answer"]


def test_event_option_counts_where_the_payload_has_none(host):
    host({"session_id": "g", "prompt": "把超时改为十秒"}, "gemini", "--event=BeforeAgent")
    host({"session_id": "g", "prompt_response": "超时已改为十秒，配置文件在 conf/app.toml。"}, "gemini",
         "--event", "AfterAgent")
    assert [e.event_type for e in host.stored()] == ["prompt", "answer"]


def test_drops_are_counted_and_the_session_still_moves(host):
    host({"session_id": "s", "hook_event_name": "Stop", "last_assistant_message": "ok"}, "claude",
         "--enqueue-summary")
    line = {"session_id": "s", "hook_event_name": "PostToolUse", "tool_name": "Bash",
            "tool_input": {"command": "npm run build"},
            "tool_response": {"stdout": "built fourteen chunks in one second without a warning"}}
    for n in range(2):
        host({**line, "tool_use_id": str(n)})
    host({**line, "tool_name": "TodoWrite"})
    host({**line, "tool_name": "mcp__memory-tiered__search_memory"})
    pool = m.Pool(host.pool)
    assert pool.drops() == {"too_short": 1, "overlap": 1, "meta_tool": 1, "own_echo": 1}
    assert pool.sessions.get("claude:s").enqueued_at and len(pool.events.recent()) == 1
    pool.close()


def test_every_sixth_prompt_asks_for_a_summary(host):
    for n in range(6):
        pool = m.Pool(host.pool)
        assert n == 0 or not pool.sessions.get("claude:s").enqueued_at
        pool.close()
        host({"session_id": "s", "hook_event_name": "UserPromptSubmit", "prompt": "问题 %d" % n})
    pool = m.Pool(host.pool)
    assert pool.sessions.get("claude:s").enqueued_at
    pool.close()


# -- switches

def test_disabled_in_the_distillers_own_session(host):
    host(failure(1), env={"MEMORY_TIERED_DISABLE": "1"})
    assert not os.path.exists(host.pool)


@pytest.mark.parametrize("settings, reason", [({"enable_capture": False}, "disabled"),
                                              ({"exclude_projects": ["/tmp"]}, "excluded_project")])
def test_settings_beside_the_store_are_read_without_it(host, settings, reason):
    m.make_private_dir(os.path.dirname(host.db))
    m.save_config(str(Path(host.db).parent / m.SETTINGS_NAME), m.Config(settings))
    host(failure(1))
    pool = m.Pool(host.pool)
    assert pool.drops() == {reason: 1} and pool.events.recent() == [] and pool.sessions.list() == []
    pool.close()
    assert not os.path.exists(host.db)


def test_broken_settings_are_logged_and_defaults_hold(host):
    m.make_private_dir(os.path.dirname(host.db))
    (Path(host.db).parent / m.SETTINGS_NAME).write_text("{broken")
    host(failure(1))
    assert len(host.stored()) == 1 and "settings" in host.logged()[0]


def test_now_is_taken_from_the_environment(host):
    host(failure(1), env={"MEMORY_TIERED_NOW": "2031-05-06T07:08:09Z"})
    host(failure(2), env={"MEMORY_TIERED_NOW": "not a time"})
    assert host.stored()[0].created_at == "2031-05-06 07:08:09"
    assert host.stored()[1].created_at > "2020"


# -- trouble

def test_locked_pool_spools_quickly_and_loses_nothing(host):
    host(failure(0))
    holder = sqlite3.connect(host.pool, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    started = time.monotonic()
    waiting = [host.start(failure(n)) for n in range(1, 5)]
    assert [p.communicate()[::-1] + (p.returncode,) for p in waiting] == [(b"", b"", 0)] * 4
    assert time.monotonic() - started < 8 and len(m.spooled(host.pool)) == 4
    assert "busy" in host.logged()[-1] or "正忙" in host.logged()[-1]
    holder.close()
    host(failure(5))  # a writer folds the spool in as well
    assert m.spooled(host.pool) == []
    assert sorted(e.event_key for e in host.stored()) == ["claude:s1|toolu_%d" % n
                                                          for n in range(6)]


@pytest.mark.parametrize("kind", ["directory", "text", "foreign"])
def test_unusable_pool(host, kind):
    m.make_private_dir(os.path.dirname(host.pool))
    if kind == "directory":
        os.mkdir(host.pool)
    elif kind == "text":
        Path(host.pool).write_text("not a database at all\n" * 100)
    else:
        foreign = sqlite3.connect(host.pool)
        foreign.execute("CREATE TABLE somebody_else (x)")
        foreign.close()
    host(failure(1))
    if kind == "directory":
        assert len(m.spooled(host.pool)) == 1
        os.rmdir(host.pool)
    assert [e.event_key for e in host.stored()] == ["claude:s1|toolu_1"]
    if kind == "foreign":
        assert sqlite3.connect(host.pool).execute(
            "SELECT count(*) FROM somebody_else").fetchone() == (0,)


def test_where_nothing_can_be_written_the_agent_goes_on(host):
    blocker = host.home / "file"
    blocker.write_text("x")
    host.command[-1] = host.command[-3] = str(blocker / "pool.db")
    assert host(failure(1)) == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="RLIMIT_FSIZE")
def test_full_disk(host):
    limited = [sys.executable, "-c",
               "import os, resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
               "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); os.execv(sys.argv[1], sys.argv[1:])"]
    done = subprocess.run([*limited, *host.command, "--agent", "claude"],
                          input=json.dumps(failure(1)).encode(), capture_output=True, env=host.env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    host(failure(2))
    assert [e.event_key for e in host.stored()] == ["claude:s1|toolu_2"]


def test_32_hooks_at_once_lose_and_double_nothing(host):
    waiting = [host.start(failure(n)) for n in range(32)]
    assert {p.communicate() + (p.returncode,) for p in waiting} == {(b"", b"", 0)}
    assert sorted(e.event_key for e in host.stored()) == sorted("claude:s1|toolu_%d" % n
                                                                for n in range(32))


def test_damaged_program_never_stops_the_agent(app, host, tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "hook.py").write_text((app / "hook.py").read_text())
    (folder / "memory_hook.py").write_text("this is no python")
    done = subprocess.run([sys.executable, "-I", "-S", str(folder / "hook.py"), "--agent",
                           "claude"], input=b"{}", capture_output=True)
    assert done.returncode == 0 and done.stdout == b""
    assert done.stderr.startswith(b"memory_tiered hook")


def test_launcher_works_with_the_whole_program_alone(app, host, tmp_path):
    folder = tmp_path / "whole"
    folder.mkdir()
    for name in ("hook.py", "memory_tiered.py"):
        (folder / name).write_text((app / name).read_text(encoding="utf-8"), encoding="utf-8")
    host.command[3] = str(folder / "hook.py")
    host(failure(1))
    assert len(host.stored()) == 1


# -- input of any kind

GOOD = json.dumps({"session_id": "s", "hook_event_name": "UserPromptSubmit", "prompt": "请记住 café"},
                  ensure_ascii=False)


@pytest.mark.parametrize("data, prompt", [
    (GOOD.encode(), "请记住 café"),
    (b"\xef\xbb\xbf" + GOOD.encode(), "请记住 café"),
    (GOOD.encode("utf-16"), "请记住 café"),
    (GOOD.encode("utf-32"), "请记住 café"),
    (GOOD.replace("café", "").encode("gbk"), "请记住"),
    (GOOD.encode().replace(b"caf", b"\xff\xfe"), "请记住 ��é"),
    (GOOD.encode() + b"\n" + GOOD.encode(), "请记住 café"),
    (GOOD[:-6].encode(), "请记住"),
    (GOOD[:-2].encode() + b"\\", "请记住 café"),
    (GOOD.replace("请", "请\n\t").encode(), "请\n\t记住 café"),
    (GOOD.replace("请", "\\ud800").encode(), "\ufffd记住 café"),
    (GOOD[:-1].encode() + b',"x":' + b"[" * 100_000, "请记住 café"),
    (GOOD[:-1].encode() + b',"x":' + b'{"a":' * 5000 + b"1" + b"}" * 5001, "请记住 café"),
    (GOOD[:-1].encode() + b',"n":' + b"9" * 5000 + b"}", "请记住 café"),
    (GOOD[:-1].encode() + b',"n":NaN,"m":-Infinity,"k":1e999}', "请记住 café"),
    (GOOD[:-1].encode() + b',"session_id":[],"cwd":{"a":1}}', "请记住 café"),
])
def test_whatever_can_be_read_is_kept(host, data, prompt):
    assert host(data) == ""
    [event] = host.stored()
    assert json.loads(event.content_json)["prompt"].strip() == prompt


def long_payload(middle="", size=700_000, ascii=False):
    text = "head line\n" + 'a "quoted" \\ word, 汉字 日志\n' * (size // 28) + middle + "x y z \n" * (
        size // 14) + "tail line"
    return json.dumps({"session_id": "s", "hook_event_name": "PostToolUse",
                       "tool_response": {"stdout": text}, "cwd": "/"},
                      ensure_ascii=ascii).encode()


def test_middle_of_a_long_string_is_not_read():
    plain = json.dumps({"a": "x", "out": "head " + "lorem ipsum 日志\n" * 60_000 + " tail \\",
                        "z": "y"}, ensure_ascii=False).encode()
    short = m.without_middles(plain)
    assert len(short) < 250_000 < len(plain)
    value = json.loads(short)
    assert value["out"].startswith("head lorem") and value["out"].endswith(" tail \\")
    assert (value["a"], value["z"]) == ("x", "y")
    assert m.neutral_event("claude", "", m.parse_payload(plain)[0], 0) is None


@pytest.mark.parametrize("middle", ["<private>", "<PRIVATE>", "＜ｐｒｉｖａｔｅ＞", "<p\\u0072ivate>",
                                    "-----BEGIN PRIVATE KEY-----"])
def test_middle_that_may_be_private_is_read(middle):
    for ascii in (False, True):
        data = json.dumps({"out": "word " * 40_000 + middle + " word" * 40_000},
                          ensure_ascii=ascii).replace("\\\\u", "\\u").encode()
        assert m.without_middles(data) is data


def test_payloads_with_many_quotes_or_none_at_all():
    data = long_payload()
    assert m.without_middles(data) is data  # too many quotes to look at
    for data in (b"x" * 400_000, b'"' + b"x" * 400_000, b'"' * 400_000, b"\\" * 400_000 + b'"',
                 b'{"a":"' + b"x " * 300_000):
        assert m.without_middles(data) == data
    assert m.neutral_event("claude", "", m.parse_payload(long_payload())[0],
                           0).content_summary.endswith("tail line")


@pytest.mark.parametrize("data", [b"", b"\n", b"\0", b"null", b"0", b'""', b"[]", b"{}",
                                  b"\xff\xfe", b"\xef\xbb\xbf{}", b"[" * 100_000,
                                  b'{"a":' * 100_000, os.urandom(4000), b"NaN",
                                  b'{"hook_event_name":[]}', b'{"hook_event_name":"Stop"}'])
def test_input_without_an_event_is_no_trouble(host, data):
    assert host(data, "claude", "--event", "PreToolUse") == ""


@pytest.mark.parametrize("data, told", [
    (b"", "empty"), (b" \n", "empty"), (b"null", "null, not"), (b"[1, 2]", "a list, not"),
    (b'"x"', "a str, not"), (b'{"session_id": "x", bad', "malformed"),
    (b"{}", "no event's name"), (b'{"session_id": "x"}', "no event's name"),
    (b'{"a":' * 100_000, "nested too deeply"),
    (GOOD[:-6].encode(), "malformed"),
    (b'{"hook_event_name":"UserPromptSubmit","prompt":{"a":1}}', "prompt is a dict"),
    (b'{"hook_event_name":["Stop"],"session_id":1}', "hook_event_name is a list, session_id"),
])
def test_bad_payload_leaves_one_line_in_the_log(host, data, told):
    assert host(data) == ""
    [line] = host.logged()
    assert "bad payload" in line and told in line and len(line) < 400
    assert host(data, env={"MEMORY_TIERED_DISABLE": "1"}) == "" and len(host.logged()) == 1


def test_good_and_ignored_payloads_leave_none(host):
    host(GOOD.encode())
    host({"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "Bash"})
    host({"session_id": "s", "prompt": "a prompt without an event"})
    host({"session_id": "s", "hook_event_name": "Frobnicate", "message": "a thing that is quite new"
          " to all of us happened"})
    assert host.logged() == []
    assert [e.event_type for e in host.stored()] == ["prompt", "prompt", "observation"]


def test_huge_payload(host):
    for character in ("A", "中"):
        host({**failure(character), "tool_response": {"stdout": character * (12 << 20)},
              "error": "big " + character * (12 << 20)})
    assert [len(e.content_json.encode()) < 65536 for e in host.stored()] == [True, True]


def test_closed_streams(host):
    for redirect in (">&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(["/bin/sh", "-c", 'exec "$@" ' + redirect, "sh", *host.command,
                               "--agent", "claude"], env=host.env,
                              input=GOOD.encode() if "<" not in redirect else None,
                              capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), redirect


@pytest.mark.parametrize("argv, agent, event, pool", [
    (["--agent", "claude-code", "--event", "Stop"], "claude", "Stop", None),
    (["--agent=Codex", "--pool=/x y/p.db"], "codex", "", "/x y/p.db"),
    (["--pool", "/p", "--agent", "我的代理"], "我的代理", "", "/p"), ([], "agent", "", None),
    (["--agent"], "agent", "", None), (["--what", "--agent", "a b:c/d", "x"], "a-b-c-d", "", None),
    (["--agent", " Some weird Agent! 中 "], "some-weird-agent!-中", "", None),
    (["--agent", "Claude Code"], "claude", "", None), (["--agent", "x" * 99], "x" * 40, "", None),
    (["--agent", " \0\n"], "agent", "", None)])
def test_options(argv, agent, event, pool):
    options = m.hook_options(argv)
    assert (options["agent"], options["event"], options.get("pool")) == (agent, event, pool)


# -- injection

def test_context_is_the_hosts_json_and_only_where_it_takes_some(capfd):
    m.print_context("UserPromptSubmit", "[长期记忆参考]\n- 部署脚本")
    reply = json.loads(capfd.readouterr().out)
    assert reply == {"hookSpecificOutput": {"hookEventName": "UserPromptSubmit",
                                            "additionalContext": "[长期记忆参考]\n- 部署脚本"}}
    m.print_context("UserPromptSubmit", "")
    assert capfd.readouterr().out == ""


@pytest.mark.skipif(not hasattr(m.Memory, "recall"), reason="RECALL is not there yet")
def test_relevant_memories_are_injected_once_a_session(host):
    memory = m.Memory(host.db, host.pool)
    for text in ("部署脚本是 scripts/deploy.sh，由 CI 的 release 任务调用", "购物车的折扣按分计算", "日志保存三十天"):
        memory.add(2, text, category="项目")
    memory.close()
    ask = {"session_id": "s", "cwd": str(host.home), "hook_event_name": "UserPromptSubmit",
           "prompt": "部署脚本 scripts/deploy.sh 由谁调用？"}
    reply = json.loads(host(ask))["hookSpecificOutput"]
    assert reply["hookEventName"] == "UserPromptSubmit"
    assert "scripts/deploy.sh" in reply["additionalContext"]
    assert len(reply["additionalContext"]) <= 800
    assert host({**ask, "prompt_id": "2"}) == ""  # it stands in the conversation already
    assert "scripts/deploy.sh" in host({**ask, "session_id": "other"})
    assert host({**ask, "session_id": "x", "hook_event_name": "Stop"}) == ""
    assert host({**ask, "session_id": "y", "prompt": "zebra quux"}) == ""
    for settings, agent in (({"enable_inject": False}, "claude"),):
        m.save_config(str(Path(host.db).parent / m.SETTINGS_NAME), m.Config(settings))
        assert host({**ask, "session_id": "z"}, agent) == ""


@pytest.mark.skipif(not hasattr(m.Memory, "recall"), reason="RECALL is not there yet")
def test_excluded_project_is_given_nothing(host):
    memory = m.Memory(host.db, host.pool)
    memory.add(2, "部署脚本是 scripts/deploy.sh，由 CI 的 release 任务调用", category="项目")
    memory.close()
    ask = {"session_id": "s", "cwd": "/tmp/secret/x", "hook_event_name": "UserPromptSubmit",
           "prompt": "部署脚本 scripts/deploy.sh 由谁调用？"}
    m.save_config(str(Path(host.db).parent / m.SETTINGS_NAME),
                  m.Config({"exclude_projects": ["/tmp/secret*"]}))
    assert host(ask) == ""
    assert host({**ask, "hook_event_name": "SessionStart", "source": "startup"}) == ""
    assert "scripts/deploy.sh" in host({**ask, "cwd": "/tmp/open"})


def test_pool_and_store_share_one_wait(host, monkeypatch):
    waits = []

    def slow(event, places, config):
        time.sleep(0.2)

    monkeypatch.setattr(m, "capture", slow)
    monkeypatch.setattr(m, "inject", lambda *a: waits.append(a[-1]) or "")
    payload = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "prompt": "x"}
    options = m.hook_options(["--db", host.db, "--pool", host.pool])
    m._take(payload, "UserPromptSubmit", options, m.Places(options))
    assert 0 <= waits[0] <= m.HOOK_BUSY_S - 0.2


# -- cost

HEAVY = {"argparse", "typing", "dataclasses", "logging", "subprocess", "urllib.request",
         "urllib.parse", "http.server", "http.client", "tempfile",
         "pathlib", "hashlib", "threading", "asyncio", "email", "socket", "inspect", "fnmatch",
         "shutil", "random", "decimal", "ast", "platform"}


@pytest.mark.parametrize("module", ["memory_hook", "memory_tiered"])
def test_nothing_heavy_is_imported(app, host, module):
    code = (
        "import sys; sys.path.append(%r); import %s as m; m.hook_main(sys.argv[1:]); m.hook_main(sys.argv[1:]); print(*sys.modules)"
            % (str(app), module))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, "--agent", "claude",
                           *host.command[4:]],
                          input=json.dumps(PAYLOADS["claude"]["PostToolUse-Bash"]).encode(),
                          capture_output=True, env=host.env)
    loaded = set(done.stdout.decode().split())
    assert done.stderr == b"" and "sqlite3" in loaded and not HEAVY & loaded, HEAVY & loaded
    assert len(host.stored()) == 1


def test_hook_part_holds_whole_sections_only(app):
    text = (app / "memory_hook.py").read_text(encoding="utf-8")
    program = Path(m.__file__).read_text(encoding="utf-8")
    banners = [line.split()[-1] for line in text.splitlines() if line.startswith("# =====")]
    assert banners == m.PROGRAM_PARTS["memory_hook.py"] and len(text) < len(program) / 2
    for name in banners:
        section = program.split("= %s\n" % name)[1].split("\n# =====")[0]
        assert section in text


def test_hook_part_needs_no_name_of_the_rest(app):
    """What the part looks up in itself is there, but for what full_program() or readers of the pool bring."""
    code = "import sys, builtins, dis; sys.path.append(%r); import memory_hook as m" % str(
        app) + """
def names(code):
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            yield step.argval
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            yield from names(constant)
source = open(m.__file__, encoding="utf-8").read()
print(*{n for n in names(compile(source, "x", "exec")) if not hasattr(m, n) and not hasattr(builtins, n)})
"""
    missing = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                                 check=True).stdout.split())
    assert missing <= {"Index", "create_index", "Meta", "to_json", "document_tokens",
                       "memory_tiered"}, missing


def test_log_rotates(home, monkeypatch):
    path = str(home / "a.log")
    monkeypatch.setattr(m, "LOG_BYTES", 2000)
    try:
        raise ValueError("secret token=ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a")
    except ValueError as error:
        for _ in range(30):
            m.log_error(path, "hook claude Stop", error, 0)
    assert os.path.getsize(path) < 2500 and os.path.exists(path + ".1")
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert "ValueError" in m.read_log(path)[-1] and "16C7e42F" not in "".join(m.read_log(path))
