"""EVENTS: real payloads of the hosts -> neutral events; projects; the capture filter."""
import json
import time
from pathlib import Path

import pytest

import memory_tiered as m

NOON = 1772366400.0  # 2026-03-01 12:00
PAYLOADS = {
    host: json.loads((Path(__file__).parent / "payloads" / (host + ".json")).read_text(
        encoding="utf-8"))
            for host in ("claude", "codex", "hermes", "gemini")}
SID = "11111111-2222-4333-8444-000000000001"
HERMES, CHILD = "hermes:20260301_120000_aa11bb", "hermes:20260301_120020_cc22dd"


def recorded(host, name):
    return m.neutral_event(host, "", PAYLOADS[host][name], NOON)


def tool(name="Bash", given=None, response=None, host="claude", **fields):
    payload = {"session_id": "s", "cwd": "/nowhere", "hook_event_name": "PostToolUse",
               "tool_name": name,
               "tool_input": {"command": "make all"} if given is None else given,
               "tool_response": response, **fields}
    return m.neutral_event(host, "", payload, NOON)


@pytest.mark.parametrize("host, name, event_type, session, summary", [
    ("claude", "UserPromptSubmit", "prompt", "claude:" + SID, "购物车的总价不对，请修复并补一个测试"),
    ("claude", "PostToolUse-Bash", "observation", "claude:" + SID,
     "[Bash] pytest -q tests/test_cart.py → 1 failed, 3 passed in 0.12s"),
    ("claude", "PostToolUse-Read", "observation", "claude:" + SID, "[Read] src/cart.py"),
    ("claude", "PostToolUse-Write", "observation", "claude:" + SID, "[Write] src/cart.py (+1 −0)"),
    ("claude", "PostToolUse-mcp__echo__echo", "observation", "claude:" + SID,
     "[mcp clock.now] 现在几点 → 上海 12:00"),
    ("claude", "PostToolUse-Agent", "observation", "claude:" + SID,
     "[Agent] sub → total() is called in four places"),
    ("claude", "PostToolUse-Bash-in_subagent", "observation", "claude:%s/a0000000000000004" % SID,
     "[Bash] grep -rn 'total(' src → src/cart.py:12: total(items)"),
    ("claude", "PostToolUseFailure-Bash", "error", "claude:" + SID,
     "[Bash] make deploy → exit 3: deploy: no such host staging"),
    ("claude", "Stop", "answer", "claude:" + SID, "购物车总价已修复：折扣按分计算，测试全部通过。"),
    ("claude", "SubagentStop", "answer", "claude:%s/a0000000000000003" % SID,
     "total() is called in four places"),
    ("claude", "PostCompact-manual", "compaction", "claude:" + SID, "修复购物车总价；折扣改按分计算；还差发布说明。"),
    ("codex", "UserPromptSubmit", "prompt", "codex:" + SID, "购物车的总价不对，请修复并补一个测试"),
    ("codex", "PostToolUse-Bash", "error", "codex:" + SID,
     "[Bash] pytest -q tests/test_cart.py → 1 failed, 3 passed in 0.12s"),
    ("codex", "PostToolUse-apply_patch", "observation", "codex:" + SID,
     "[apply_patch] src/cart.py (+1 −0)"),
    ("codex", "PostToolUse-mcp__echo__echo", "observation", "codex:" + SID,
     "[mcp clock.now] 现在几点 → 上海 12:00"),
    ("codex", "Stop", "answer", "codex:" + SID, "购物车总价已修复：折扣按分计算，测试全部通过。"),
    ("hermes", "pre_llm_call", "prompt", HERMES, "部署脚本放在哪里"),
    ("hermes", "post_llm_call", "answer", HERMES, "部署脚本在 scripts/deploy.sh，由 CI 调用。"),
    ("hermes", "post_llm_call-child", "answer", CHILD, "只有 CI 的 release 任务调用它。"),
    ("hermes", "post_tool_call-terminal", "observation", "hermes:test-session",
     "[terminal] echo hello → hello"),
    ("gemini", "BeforeAgent", "prompt", "gemini:g-1", "把缓存的过期时间改成十分钟"),
    ("gemini", "AfterTool", "observation", "gemini:g-1",
     "[run_shell_command] npm run build → built in 1.2s"),
    ("gemini", "AfterTool-error", "error", "gemini:g-1",
     "[read_file] src/none.ts → File not found: src/none.ts"),
    ("gemini", "AfterAgent", "answer", "gemini:g-1", "缓存过期时间已改为十分钟，配置在 src/cache.ts。"),
])
def test_recorded_payload_becomes_event(host, name, event_type, session, summary):
    event = recorded(host, name)
    assert (event.event_type, event.session_id,
            event.content_summary) == (event_type, session, summary)
    assert event.sensitivity == ("untrusted" if event_type in ("observation", "error")
                                 else "normal")
    assert json.loads(event.content_json)


@pytest.mark.parametrize("host, name, phase, enqueue", [
    ("claude", "SessionStart-startup", "start", False),
    ("claude", "SessionStart-resume", "start", False),
    ("claude", "SessionStart-compact", "compact", False), ("claude", "SessionEnd", "end", True),
    ("claude", "SubagentStart", "start", False), ("codex", "SessionEnd", "end", True),
    ("hermes", "on_session_start", "start", False), ("hermes", "on_session_end", "", True),
    ("hermes", "on_session_finalize", "end", True), ("gemini", "SessionEnd", "end", True),
])
def test_recorded_payload_moves_the_session(host, name, phase, enqueue):
    event = recorded(host, name)
    assert (event.event_type, event.phase, event.enqueue) == ("", phase, enqueue)


@pytest.mark.parametrize("host, name", [
    (host, name) for host, rows in PAYLOADS.items() for name in rows
    if name.split("-")[0] in ("PreToolUse", "pre_tool_call", "PreCompact", "PreCompress",
                              "PreModelRequest", "MessageDisplay",
                              "InstructionsLoaded", "PostToolBatch", "PermissionRequest")
    or name in ("SubagentStop-internal", "UserPromptSubmit-in_subagent", "pre_llm_call-child",
                "PostCompact-auto")])
def test_payload_that_tells_nothing_is_ignored(host, name):
    assert recorded(host, name) is None


def test_subagents_stay_with_their_parent():
    inside, child = recorded("codex",
                             "PostToolUse-Bash-in_subagent"), recorded("hermes", "subagent_start")
    assert inside.parent_id == "codex:" + SID and inside.is_subagent and inside.host_id == SID
    assert (child.session_id, child.parent_id, child.is_subagent) == (CHILD, HERMES, True)
    assert child.title == "查一下谁调用了部署脚本"
    assert recorded("hermes", "subagent_stop")[:1] == (CHILD,)


def test_event_key_is_the_same_for_two_deliveries_and_differs_for_two_events():
    again = recorded("claude", "PostToolUse-Bash").event_key
    assert recorded("claude", "PostToolUse-Bash").event_key == again
    assert recorded("claude",
                    "UserPromptSubmit").event_key == recorded("claude",
                                                              "UserPromptSubmit").event_key
    two = [m.neutral_event("claude", "",
                           {**PAYLOADS["claude"]["Stop"], "last_assistant_message": said},
                           NOON).event_key
           for said in ("first stop", "second stop")]
    assert two[0] != two[1]
    assert tool().event_key != tool().event_key  # no id from the host: random


def test_payloads_own_event_name_wins_over_the_argument():
    assert m.neutral_event("claude", "Stop", PAYLOADS["claude"]["UserPromptSubmit"],
                           NOON).event_type == "prompt"
    assert m.neutral_event("claude", "UserPromptSubmit", {"session_id": "s", "prompt": "你好"},
                           NOON).event_type == "prompt"


@pytest.mark.parametrize("host, response, failed", [
    ("codex", "Exit code: 2\nWall time: 0.1\nOutput:\nno rule", True),
    ("codex", "Exit code: 0\nWall time: 0.1\nOutput:\nfine", False),
    ("codex", "Process exited with code 127\n", True),
    ("codex", "bash: line 1: foo: command not found\n", True),
    ("codex", "Traceback (most recent call last):\n  File\nKeyError: 1", True),
    ("codex", "the docs say: exit code 1 means trouble", False),
    ("codex", "0 failed, 3 passed", False),
    ("codex", {"content": [{"type": "text", "text": "no such file"}], "isError": True}, True),
    ("hermes", '{"output": "boom", "exit_code": 3, "error": null}', True),
    ("hermes", '{"output": "ok", "exit_code": 0}', False),
    ("claude", {"stdout": "Exit code: 2\nfatal: x", "stderr": ""},
     False),  # Claude Code tells failures itself
])
def test_failure_is_read_from_the_answer(host, response, failed):
    assert (tool(response=response, host=host).event_type == "error") is failed


@pytest.mark.parametrize("name, given, response, summary", [
    ("Bash", {"command": "pytest -q"},
     {"stdout": "F\nFAILED t/test_a.py::test_login - x\n2 failed, 3 passed in 0.3s"},
     "[Bash] pytest -q → 2 failed, 3 passed in 0.3s: test_login - x"),
    ("Edit", {"file_path": "src/api.ts", "old_string": "a\nb\nc", "new_string": "a\nX\nY\nc"}, {},
     "[Edit] src/api.ts (+2 −1)"),
    ("Edit", {"file_path": "src/api.ts"},
     {"structuredPatch": [{"lines": [" a", "-b", "+X", "+Y"]}]}, "[Edit] src/api.ts (+2 −1)"),
    ("WebFetch", {"url": "https://x.org/a", "prompt": "sum up"}, {"result": "limit is 100"},
     "[WebFetch] https://x.org/a → limit is 100"),
    ("apply_patch",
     {"command": "*** Begin Patch\n*** Update File: a.py\n-x\n+y\n+z\n*** Delete File: b.py\n*** End Patch"},
     "Exit code: 0", "[apply_patch] a.py, b.py (+2 −1)"),
    ("Bash", {"command": "ls\n-la"}, {"stdout": "\x1b[31mred\x1b[0m \u202eevil\x07"},
     "[Bash] ls -la → red evil"),
    ("Grep", {"pattern": "total", "path": "src"}, {"content": "a.py:1:total"},
     "[Grep] total in src → 1 hit: a.py:1:total"),
    ("Grep", {"pattern": "TODO|FIXME"},
     {"mode": "files_with_matches", "filenames": ["a.py", "b.py"], "numFiles": 2},
     "[Grep] TODO|FIXME → 2 hits: a.py, b.py"),
    ("Grep", {"pattern": "nowhere", "path": "src"}, {"content": "", "numFiles": 0},
     "[Grep] nowhere in src → 0 hits"),
    ("grep_search", {"pattern": "总价"}, "Found 7 matches for pattern\ncart.py:1: 总价 = 0",
     "[grep_search] 总价 → 7 hits: cart.py:1: 总价 = 0"),
    ("search_files", {"pattern": "total"}, "No files found", "[search_files] total → 0 hits"),
    ("Glob", {"pattern": "**/*.ts"}, {"filenames": ["x.ts", "y.ts"], "numFiles": 2},
     "[Glob] **/*.ts → 2 hits: x.ts, y.ts"),
    ("MultiEdit", {"file_path": "a.ts", "edits": [{"old_string": "a", "new_string": "b\nc"},
                                                  {"old_string": "d\ne", "new_string": "f"}]},
     {}, "[MultiEdit] a.ts (+3 −3)"),
    ("NotebookEdit", {"notebook_path": "n.ipynb", "new_source": "a\nb"}, {},
     "[NotebookEdit] n.ipynb (+2 −0)"),
    ("str_replace_editor", {"path": "a.py", "old_str": "x\ny", "new_str": "x\nz\ny"}, {},
     "[str_replace_editor] a.py (+1 −0)"),
    ("mcp__fs__write_file", {"path": "a.py", "content": "x\ny\n"}, "written",
     "[mcp fs.write_file] a.py (+2 −0) → written"),
    ("exec_command", {"cmd": "apply_patch <<'E'\n*** Begin Patch\n*** Add File: b.py\n+x\n+y\n"
                             "*** End Patch\nE"}, "Success.",
     "[exec_command] b.py (+2 −0) → Success."),
])
def test_summary_is_a_sentence(name, given, response, summary):
    assert tool(name, given, response).content_summary == summary


@pytest.mark.parametrize("command, said, summary", [
    ("go test ./...", "--- FAIL: TestCart (0.00s)\n    cart_test.go:12: expected 3, got 2\nFAIL\n"
     "FAIL\tx/cart\t0.012s\nok  \tx/pay\t0.3s\nFAIL", "TestCart (cart_test.go:12: expected 3, got 2)"),
    ("go build", "# x\n./main.go:12:5: undefined: total\nbuild failed",
     "./main.go:12:5: undefined: total"),
    ("npm test", "  ● cart › adds item\n    expect(x)\nTests:       2 failed, 10 passed, 12 total",
     "Tests: 2 failed, 10 passed, 12 total: cart › adds item"),
    ("vitest", "\x1b[31m FAIL \x1b[0m x.ts\n   ✕ adds item (3 ms)\nTests  1 failed (4)",
     "Tests 1 failed (4): x.ts; adds item"),
    ("cargo build", "error[E0382]: borrow of moved value: `cfg`\n --> src/main.rs:14:20\n"
     "error: could not compile `app`",
     "error[E0382]: borrow of moved value: `cfg` (src/main.rs:14:20)"),
    ("cargo test", "test cart::adds ... FAILED\ntest result: FAILED. 3 passed; 1 failed",
     "test result: FAILED. 3 passed; 1 failed: adds ..."),
    ("tsc", "src/a.ts(12,5): error TS2322: Type 'x'.\nFound 1 error.",
     "Found 1 error.: src/a.ts(12,5): error TS2322: Type 'x'."),
    ("gcc a.c", "a.c:3:5: error: 'y' undeclared\nmake: failed", "a.c:3:5: error: 'y' undeclared"),
    ("pytest", "E   AssertionError: assert 3 == 2\nFAILED t/test_a.py::C::test_b - Assert\n1 failed",
     "1 failed: AssertionError: assert 3 == 2; test_b - Assert"),
    ("pytest", "ERROR tests/test_a.py - ImportError: no x\n1 error in 0.1s",
     "1 error in 0.1s: tests/test_a.py - ImportError: no x"),
    ("python -m unittest", "ERROR: test_x (m.C)\nKeyError: 'a'\nFAILED (errors=1)",
     "FAILED (errors=1): test_x (m.C); KeyError: 'a'"),
    ("systemctl status x", "● x.service - A server\n  Active: active (running)",
     "Active: active (running)"),
])
def test_summary_names_what_failed(command, said, summary):
    event = tool(given={"command": command}, response="Exit code: 1\n" + said, host="codex")
    assert event.content_summary == "[Bash] %s → exit 1: %s" % (command, summary)
    long = tool(given={"command": command * 99}, response="Exit code: 1\n" + said * 99)
    assert len(long.content_summary) <= 500


TEXT = "".join("    result_%d = compute(%d)\n" % (n, n) for n in range(20_000))


@pytest.mark.parametrize("name, given, counted", [
    ("Write", {"file_path": "a.py", "content": TEXT}, "(+20000 −0)"),
    ("Edit", {"file_path": "a.py", "old_string": TEXT, "new_string": TEXT + TEXT}, "(+20000 −0)"),
    ("Edit", {"file_path": "a.py", "old_string": "x\n" + TEXT, "new_string": "y\nz\n" + TEXT},
     "(+2 −1)"),
    ("MultiEdit", {"file_path": "a.py", "edits": [{"old_string": "a", "new_string": "b"}] * 30},
     "(+30 −30)"),
    ("apply_patch", {"command": "*** Begin Patch\n*** Add File: a.py\n+"
                                + TEXT.replace("\n", "\n+")[:-1] + "*** End Patch\n"}, "(+20000 −0)"),
    ("Write", {"file_path": "a.md", "content": "how to\n*** Begin Patch\n+x\n*** End Patch"},
     "(+4 −0)"),
    ("Write", {"file_path": "d/" * 200 + "a.py", "content": "x"}, "(+1 −0)"),
])
def test_lines_are_counted_before_anything_is_cut(name, given, counted):
    event = tool(name, given, "")
    assert counted in event.content_summary and len(event.content_json) < 65536


def test_lines_of_what_is_too_long_to_read_whole_are_counted():
    data = json.dumps({"session_id": "s", "hook_event_name": "PostToolUse", "tool_name": "Write",
                       "tool_input": {"file_path": "a.py", "content": TEXT}}).encode()
    assert len(data) > 500_000
    started = time.perf_counter()
    payload, trouble = m.parse_payload(data)
    event = m.neutral_event("claude", "", payload, NOON)
    assert not trouble and event.content_summary == "[Write] a.py (+20000 −0)"
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("response, failed", [
    ("apply_patch verification failed: Failed to find expected lines in a.py", True),
    ("Exit code: 0\nWall time: 0\nOutput:\nFailed to find context '@@ x' in a.py", True),
    ("unsupported call: apply_patch", True), ("patch rejected by user", True),
    ("Error: invalid patch", True), ("Invalid Context 0", True),
    ('{"success": false, "error": "no match"}', True), ('{"error": "cannot read a.py"}', True),
    ({"success": False}, True), ({"success": True}, False),
    ("Success. Updated the following files:\nM error.py\nA failed.py", False),
    ("Exit code: 0\nOutput:\nSuccess. Updated the following files:\nM a.py", False),
    ('{"success": true, "diff": "failed"}', False), ("", False),
])
@pytest.mark.parametrize("name", ["apply_patch", "patch", "write_file", "Edit"])
def test_change_that_failed_is_an_error(name, response, failed):
    event = tool(name, {"command": "*** Begin Patch\n*** Update File: a.py\n-x\n+y"}, response,
                 host="codex")
    assert (event.event_type == "error") is failed


@pytest.mark.parametrize("fields, summary", [
    ({"message": "a frobnication occurred"}, "[Frobnicate] a frobnication occurred"),
    ({"text": "one", "prompt": "two"}, "[Frobnicate] two one"),
    ({"message": [{"type": "text", "text": "三"}]}, "[Frobnicate] 三"),
    ({"tool_name": "Bash", "tool_use_id": "7", "tool_input": {"command": "make"},
      "tool_response": "built"}, "Frobnicate: [Bash] make → built"),
    ({"cwd": "/tmp", "number": 7}, None), ({}, None),
])
def test_unknown_event_that_says_something_is_kept_under_its_name(fields, summary):
    payload = {"session_id": "s", "hook_event_name": "Frobnicate", **fields}
    event = m.neutral_event("claude", "", payload, NOON)
    given = m.neutral_event("claude", "Frobnicate", {"session_id": "s", **fields}, NOON)
    assert (event and event.content_summary) == (given and given.content_summary) == summary
    if event:
        assert (event.event_type, event.sensitivity) == ("observation", "untrusted")
        assert json.loads(event.content_json)["event"] == "Frobnicate"
        assert m.drop_reason(event, m.Config({"capture.min_chars": 0})) == ""


def test_payload_without_an_events_name():
    for field in ("prompt", "user_message"):
        event = m.neutral_event("x", "", {"session_id": "s", field: "请修复"}, NOON)
        assert (event.event_type, event.content_summary) == ("prompt", "请修复")
    event = m.neutral_event("x", "", {"tool_name": "Bash", "tool_input": {"command": "ls"}}, NOON)
    assert event.event_type == "observation"
    assert m.neutral_event("x", "", {"session_id": "s"}, NOON) is None


def test_prompt_of_blocks_is_read():
    prompt = [{"type": "text", "text": "请修复"}, {"type": "image"}]
    event = m.neutral_event("claude", "UserPromptSubmit", {"prompt": prompt}, NOON)
    assert event.content_summary == "请修复"
    event = m.neutral_event("claude", "UserPromptSubmit", {"prompt": '{"text": "x", "n": 1}'}, NOON)
    assert event.content_summary == '{"text": "x", "n": 1}'


def test_what_the_person_decided_is_a_decision():
    asked = tool("AskUserQuestion", {"questions": []}, {"answers": {"用哪个数据库？": "PostgreSQL"}})
    plan = tool("ExitPlanMode", {"plan": "1. 改表"}, {"plan": "1. 改表"})
    assert (asked.event_type, asked.content_summary,
            asked.sensitivity) == ("decision", "用哪个数据库？ → PostgreSQL", "normal")
    assert plan.event_type == "decision" and plan.content_summary.endswith("plan approved: 1. 改表")


def test_large_content_is_cut_and_bounded():
    event = tool("Read", {"file_path": "a.txt"}, {"file": {"content": "汉字 line\n" * 200_000}})
    deep = tool("mcp__x__y", {"a": [{"b" * 500: ["c" * 9000] * 100}] * 100}, "ok")
    assert len(event.content_json.encode()) < 8192 and len(event.content_summary) <= 500
    assert len(deep.content_json.encode()) <= 65536
    prompt = m.neutral_event("claude", "UserPromptSubmit",
                             {"session_id": "s", "prompt": "记" * 90_000}, NOON)
    assert len(prompt.content_json.encode()) <= 65536 and len(prompt.content_summary) == 500


SECRET = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"


@pytest.mark.parametrize("at", [100, 2600, 2650, 2660, 3990, 6000, 298_600, 298_650, 299_990])
def test_no_cut_hides_half_of_a_secret(at):
    text = ("word %d\n" % at) * 60_000
    text = text[:at] + " token=" + SECRET + " " + text[at:300_000]
    stored = tool(response={"stdout": text}).content_json
    assert SECRET[:20] not in stored and SECRET[-16:] not in stored


@pytest.mark.parametrize("opening, closing",
                         [("<private>", "</private>"), ("<PRIVATE >", "</Private>"),
                          ("＜ｐｒｉｖａｔｅ＞", "＜/ｐｒｉｖａｔｅ＞"), ("&lt;private&gt;", "&lt;/private&gt;")])
def test_private_passage_across_the_cut_is_removed(opening, closing):
    text = "before\n" + "x y\n" * 3000 + opening + "\nmy diary\n" + "d e\n" * 5000 + "diary end\n" + closing + "\nafter"
    assert "diary" not in tool(response={"stdout": text}).content_json


def test_everything_is_redacted():
    event = tool(given={"command": "curl -H 'Authorization: Bearer %s'" % SECRET,
                        "env": {"password": "hunter42x"}},
                 response={"stdout": "export GITHUB_TOKEN=" + SECRET})
    prompt = m.neutral_event("claude", "UserPromptSubmit",
                             {"session_id": "s",
                              "prompt": "my key is %s, <private>x</private> ok" % SECRET}, NOON)
    for text in (*event, *prompt):
        assert SECRET not in str(text) and "hunter42x" not in str(text)
    assert "<private>" not in prompt.content_json


@pytest.mark.parametrize("value", [None, True, -1, 1 << 70, 10 ** 400, float("nan"), float("inf"),
                                   "", "\0", "a\0b", "\ud800", "\u202e",
                                   [], {}, [[]], [None] * 50, {"": ""}, "A" * 100_000, "中" * 40_000,
                                   {"x": {"y": [1, {"z": None}]}}])
@pytest.mark.parametrize("field", ["session_id", "cwd", "tool_name", "tool_input", "tool_response",
                                   "tool_use_id", "agent_id", "prompt",
                                   "error", "hook_event_name", "extra"])
def test_no_field_of_any_type_breaks_it(field, value):
    for name in ("PostToolUse-Bash", "PostToolUseFailure-Bash", "UserPromptSubmit", "Stop"):
        event = m.neutral_event("claude", "PostToolUse", {**PAYLOADS["claude"][name], field: value},
                                NOON)
        if event is not None:
            for text in event:
                str(text).encode("utf-8")
            json.loads(event.content_json)
            m.drop_reason(event, m.Config())


# -- projects

def make_worktree(main, name, tree):
    """What `git worktree add` leaves on disk."""
    own = main / ".git" / "worktrees" / name
    own.mkdir(parents=True)
    (own / "commondir").write_text("../..\n")
    tree.mkdir(parents=True)
    (tree / ".git").write_text("gitdir: %s\n" % own)


def test_project_is_the_main_working_tree(tmp_path):
    main, tree = tmp_path / "shop", tmp_path / "trees" / "fix"
    (main / ".git").mkdir(parents=True)
    (main / "src" / "deep").mkdir(parents=True)
    make_worktree(main, "fix", tree)
    (tree / "src").mkdir()
    (tmp_path / "link").symlink_to(main / "src")
    for folder in (main, main / "src" / "deep", main / "src" / "deleted" / "later", main / ".git",
                   tree, tree / "src", tmp_path / "link"):
        assert m.project_of(str(folder)) == str(main.resolve()), folder


def test_submodule_is_its_own_project_and_so_is_its_worktree(tmp_path):
    sub, git = tmp_path / "super" / "sub", tmp_path / "super" / ".git" / "modules" / "sub"
    sub.mkdir(parents=True)
    git.mkdir(parents=True)
    (sub / ".git").write_text("gitdir: ../.git/modules/sub\n")
    (git / "config").write_text("[core]\n\tbare = false\n\tworktree = ../../../sub\n")
    own = git / "worktrees" / "w"
    own.mkdir(parents=True)
    (own / "commondir").write_text("../..\n")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / ".git").write_text("gitdir: %s\n" % own)
    assert m.project_of(str(sub)) == m.project_of(str(tmp_path / "w")) == str(sub.resolve())


def test_bare_repository_with_worktrees(tmp_path):
    bare, tree = tmp_path / "shop.git", tmp_path / "main"
    for name in ("objects", "refs", "worktrees/main"):
        (bare / name).mkdir(parents=True)
    (bare / "HEAD").write_text("ref: refs/heads/main\n")
    (bare / "config").write_text("[core]\n\tbare = true\n")
    (bare / "worktrees" / "main" / "commondir").write_text("../..\n")
    tree.mkdir()
    (tree / ".git").write_text("gitdir: %s\n" % (bare / "worktrees" / "main"))
    assert m.project_of(str(tree)) == m.project_of(str(bare)) == m.project_of(
        str(bare / "refs")) == str(bare.resolve())


def test_directory_without_repository_is_itself(tmp_path, home):
    (home / ".git").mkdir()  # dot files under git do not swallow what lies below
    (home / "notes").mkdir()
    assert m.project_of(str(home / "notes")) == str((home / "notes").resolve())
    assert m.project_of(str(tmp_path / "gone")) == str(tmp_path.resolve() / "gone")
    assert m.project_of("") == "" and m.project_of("relative") == "relative"
    assert m.project_of("/a\0b\ud800")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / ".git").write_text("no git file")
    assert m.project_of(str(broken)) == str(broken.resolve())


# -- the filter

def reason(event, **settings):
    return m.drop_reason(event, m.Config(settings))


@pytest.mark.parametrize("expected, event", [
    ("", tool(response={"stdout": "built 14 chunks in 1.2 s"})),
    ("too_short", tool(given={"command": "ls"}, response={"stdout": "a b"})),
    ("low_value", tool(response={"stdout": "Usage: make [options] [target] ..."})),
    ("low_value", tool(response={"stdout": "entry_count: 12\nhits: 3, and a long line after it"})),
    ("low_value", tool(response={"stdout": "[SILENT] nothing to report in this run of the job"})),
    ("meta_tool", tool("TodoWrite", {"todos": ["a long list of things to do"]}, "ok")),
    ("meta_tool", tool("mcp__some-memory__store", {"text": "a long text that is stored"}, "ok")),
    ("meta_tool", tool("cronjob", {"text": "every day at nine o'clock, report"}, "ok")),
    ("own_echo", tool("mcp__memory-tiered__search_memory", {"query": "deploy"},
                      [{"type": "text", "text": "L1:3 deploy script"}])),
    ("own_echo", tool("save_memory", {"text": "the deploy script moved"}, "saved", host="hermes")),
    ("own_echo",
     tool(
         given={
             "command": "python3 ~/agent-memory/memory/memory_tiered.py search-all --keyword 部署"},
         response={"stdout": "L1:3"})),
    ("own_echo",
     tool(given={"command": "cd x && /usr/bin/python3.11 -I -S '/a b/memory_tiered.py' list"},
          response={"stdout": "L1:3"})),
    ("own_echo", tool(given={"command": "python3 -I -S /app/hook.py --agent claude < x"},
                      response={"stdout": "done and some more text"})),
    ("", tool(given={"command": "git add memory_tiered.py tests && git commit -m x"},
              response={"stdout": "1 file changed"})),
    ("", tool(response={"stdout": "[main 1a2b3c] 修复总价"}, given={"command": "git commit"})),
    ("", m.neutral_event("claude", "UserPromptSubmit", {"session_id": "s", "prompt": "继续"}, NOON)),
    ("too_short",
     m.neutral_event("claude", "Stop", {"session_id": "s", "last_assistant_message": "好的，完成。"},
                     NOON)),
    ("", m.neutral_event("claude", "Stop",
                         {"session_id": "s", "last_assistant_message": "总价已修复，折扣改为按分计算，测试通过。"},
                         NOON)),
    ("", m.neutral_event("claude", "PostToolUseFailure",
                         {"session_id": "s", "tool_name": "Bash", "error": "usage: x"}, NOON)),
    ("own_echo", m.neutral_event("claude", "PostToolUseFailure",
                                 {"session_id": "s", "tool_name": "mcp__m__get_memory",
                                  "error": "x"}, NOON)),
])
def test_filter(expected, event):
    assert reason(event) == expected


def test_switches_and_excluded_projects(tmp_path):
    event = tool(response={"stdout": "built 14 chunks in 1.2 s"},
                 cwd=str(tmp_path / "secret" / "x"))
    assert reason(event, enable_capture=False) == "disabled"
    for glob in (str(tmp_path / "secret"), str(tmp_path / "sec*"), "*/secret/*"):
        assert reason(event, exclude_projects=[glob]) == "excluded_project"
    assert reason(event, exclude_projects=["/other"]) == ""


@pytest.mark.parametrize("block",
                         ["[长期记忆参考]\n- L1:3 旧事\n- L2:4 更旧\n\n",
                          "[Long-term memory]\n- L1:3 old\n\n",
                          "<memory-context>\n[L2] old 旧事\n</memory-context>\n"])
def test_injected_memories_are_not_captured_again(block):
    event = m.neutral_event("claude", "UserPromptSubmit",
                            {"session_id": "s", "prompt": block + "请修复测试"}, NOON)
    assert json.loads(event.content_json)["prompt"] == "请修复测试"
    only = m.neutral_event("claude", "UserPromptSubmit", {"session_id": "s", "prompt": block}, NOON)
    assert only is None


def record(event, n):
    return m.EventRecord(n, event.session_id, event.agent, event.event_type, "", "",
                         event.tool_name, event.content_summary,
                         event.content_json, event.sensitivity, "raw", event.event_key)


def test_repetition_is_the_overlap_of_search_tokens():
    line = "src/cart.py:%d warning unused import, 未使用的变量 %s"
    first = tool(response={"stdout": "\n".join(line % (n, "abcdefgh"[n % 8]) for n in range(20))})
    again = tool(response={"stdout": "\n".join(line % (n, "abcdefgh"[n % 8]) for n in range(19))})
    other = tool(response={"stdout": "an entirely different answer about the network 网络连接"})
    calls = []

    def measure(a, b):
        calls.append(1)
        return m.overlap(a, b)

    assert m.is_repetition(again, [record(other, 1), record(first, 2)], m.Config(), measure)
    assert not m.is_repetition(other, [record(first, 2)], m.Config(), measure)
    assert not m.is_repetition(first, [record(first, 2)], m.Config(), measure)  # the same delivery
    assert not calls  # both were clear at a glance
    error = first._replace(event_type="error")
    assert not m.is_repetition(error, [record(error._replace(event_key="x"), 1)], m.Config(),
                               measure)


def is_again(event, *before):
    rows = [record(other, n) for n, other in enumerate(before)]
    return m.is_repetition(event, rows, m.Config(), m.overlap)


@pytest.mark.parametrize("name", ["Edit", "edit_file", "mcp__fs__edit_file"])
def test_change_of_a_file_is_dropped_only_as_the_same_change(name):
    def edit(path, old="logger = logging.getLogger('orders')",
             new="logger = structlog.get_logger('orders')"):
        return tool(name, {"file_path": path, "old_string": old, "new_string": new}, {})

    first = edit("src/handlers/orders_1.py")
    assert is_again(edit("src/handlers/orders_1.py"), edit("x.py"), first)
    assert not is_again(edit("src/handlers/orders_2.py"), first)
    assert not is_again(edit("src/handlers/orders_1.py", new="logger = None  # of orders"), first)
    assert reason(edit("V", "1.2.3", "1.2.4")) == ""  # short as it is


def test_change_in_the_middle_of_a_long_file_is_no_repetition():
    text = "line of the file\n" * 2000
    one, two = (tool("Write", {"file_path": "a", "content": text + middle + text}, {})
                for middle in "xy")
    assert not is_again(two, one)


def test_patch_in_a_command_is_a_change():
    def patch(path):
        return tool("exec_command", {"cmd": "apply_patch <<E\n*** Begin Patch\n*** Update File: %s"
                                            "\n-a\n+b\n*** End Patch\nE" % path}, "Done")

    assert not is_again(patch("a.py"), patch("b.py")) and is_again(patch("a.py"), patch("a.py"))
    assert reason(patch("a")) == ""


@pytest.mark.parametrize("outcomes", [
    ("3 failed, 7 passed in 1.2s for orders", "1 failed, 9 passed in 1.1s for orders",
     "10 passed in 1.0s for orders"),
    ("Tests: 2 failed, 10 passed, 12 total", "Tests: 1 failed, 11 passed, 12 total"),
    ("Ran 10 tests\nFAILED (failures=2)", "Ran 10 tests\nFAILED (failures=1)",
     "Ran 10 tests\nOK"),
    ("FAILED t.py::test_a - x\n1 failed in 0.1s", "FAILED t.py::test_b - x\n1 failed in 0.1s"),
    ("✖ 5 problems (5 errors, 0 warnings)", "✖ 3 problems (3 errors, 0 warnings)"),
])
def test_another_outcome_is_no_repetition(outcomes):
    noise = "collecting the tests of the orders module, please wait\n" * 60
    runs = [tool(given={"command": "run tests/test_orders"}, response={"stdout": noise + said})
            for said in outcomes]
    for n, run in enumerate(runs):
        assert not is_again(run, *runs[:n])
        assert is_again(run._replace(event_key="again"), *runs)


def test_the_same_outcome_a_little_later_is_a_repetition():
    runs = [tool(given={"command": "pytest tests/test_orders.py -k refund"},
                 response={"stdout": "5 passed in %s seconds for the refund module" % seconds})
            for seconds in ("0.33", "0.34")]
    assert is_again(runs[1], runs[0])


def test_glance_agrees_with_the_measure():
    words = "worker started database connection retry timeout parser module failed passed schema index profile cart".split() + [
        "数据库", "连接超时", "缓存命中", "价格", "修复", "测试失败", "迁移"]
    for n in range(0, 21):
        text = " ".join(words)
        said = " ".join(words[:n] + ["other%d" % i for i in range(21 - n)])
        a, b = m._words(text), m._words(said)
        share = len(a & b) / len(a | b)
        if not m.CLEARLY_OTHER < share <= m.CLEARLY_SAME:
            assert (share > m.CLEARLY_SAME) == (m.overlap(text, said) > 0.6)


def test_host_names_stand_in_one_table():
    source = Path(m.__file__).read_text(encoding="utf-8")
    events = source.split(
        "# ============================================================== EVENTS")[1].split(
            "# =====")[0]
    before_tables = events.split("HOST_EVENTS = ")[0]
    for name in ("UserPromptSubmit", "PostToolUse", "BeforeAgent", "post_tool_call", "SessionEnd"):
        assert name not in before_tables
