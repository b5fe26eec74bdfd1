"""Session files of Claude Code and Codex: read as their hooks would have told them."""
import json

import pytest

import memory_tiered as m

CLAUDE = {"sessionId": "S", "cwd": "/home/u/shop", "isSidechain": False}


def claude_row(kind, content, second=0, **fields):
    return {**CLAUDE, "type": kind, "timestamp": "2026-03-01T10:00:%02d.500Z" % second,
            "promptId": "P",
            "message": {"role": kind, "content": content, "id": fields.pop("message_id", None)},
            **fields}


def tool_use(number, name, given):
    return {"type": "tool_use", "id": "toolu_%d" % number, "name": name, "input": given}


def tool_result(number, content, is_error=False):
    return {"type": "tool_result", "tool_use_id": "toolu_%d" % number, "content": content,
            "is_error": is_error}


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)
                              for row in rows), encoding="utf-8")
    return str(path)


def events(agent, path):
    return [event for _, found in m.transcript_sessions(agent, str(path)) for event in found]


def told(found):
    return [(event.event_type or event.phase, event.content_summary) for event in found]


CONVERSATION = [
    claude_row("user", "修一下登录超时", 1),
    claude_row("assistant", [{"type": "thinking", "thinking": "hm"},
                             {"type": "text", "text": "我来看看。"}], 2),
    claude_row("assistant", [tool_use(1, "Bash", {"command": "pytest -q"})], 3),
    claude_row("user", [tool_result(1, "Exit code 1\n2 failed", True)], 4,
               toolUseResult="Error: Exit code 1\n2 failed"),
    claude_row("assistant", [tool_use(2, "Edit",
                                      {"file_path": "/home/u/shop/login.py", "old_string": "a",
                                       "new_string": "b"})], 5),
    claude_row("user", [tool_result(2, "ok")], 6,
               toolUseResult={"filePath": "/home/u/shop/login.py", "structuredPatch": []}),
    claude_row("assistant", [{"type": "text", "text": "已修复：超时改为 30 秒。"}], 7),
]


def test_claude_rows_become_events(tmp_path):
    found = events("claude", write(tmp_path / "s.jsonl", CONVERSATION))
    assert told(found) == [("prompt", "修一下登录超时"), ("error", "[Bash] pytest -q → exit 1: 2 failed"),
                           ("observation", "[Edit] login.py (+1 −1)"),
                           ("answer", "已修复：超时改为 30 秒。"), ("end", "")]
    assert {event.session_id for event in found} == {"claude:S"}
    assert m.utc_text(found[0].at) == "2026-03-01 10:00:01"


def test_keys_are_those_of_the_hooks(tmp_path):
    pool = m.Pool(str(tmp_path / "pool.db"))
    base = {"session_id": "S", "cwd": "/home/u/shop", "prompt_id": "P"}
    live = [m.neutral_event("claude", "UserPromptSubmit", {**base, "prompt": "修一下登录超时"}, 1.7e9),
            m.neutral_event("claude", "PostToolUseFailure",
                            {**base, "tool_name": "Bash", "tool_input": {"command": "pytest -q"},
                             "tool_use_id": "toolu_1", "error": "Exit code 1\n2 failed"}, 1.7e9),
            m.neutral_event("claude", "Stop", {**base, "last_assistant_message": "已修复：超时改为 30 秒。"},
                            1.7e9)]
    assert pool.record_all(live) == 3
    path = write(tmp_path / "s.jsonl", CONVERSATION)
    assert pool.record_all(events("claude", path)) == 1  # the Edit alone is new
    assert pool.record_all(events("claude", path)) == 0
    pool.close()


@pytest.mark.parametrize("row", [
    claude_row("user", "<local-command-stdout>x</local-command-stdout>"),
    claude_row("user", "<command-name>/compact</command-name>"),
    claude_row("user", "meta", isMeta=True), claude_row("user", "[Request interrupted by user]"),
    {"type": "attachment", "attachment": {"type": "hook"}, "message": {"content": "secret"}},
    {"type": "api-request-blob", "message": {"role": "user", "content": "injected"}},
    {"type": "user"}, {"type": "user", "message": {"content": 5}},
    claude_row("user", [tool_result(9, "of a call nobody made")]),
    claude_row("user", [None, 3, {"type": "text"}]), "[1, 2]", "{broken", "", "\x00\xff", "null",
])
def test_other_rows_and_rubbish_are_passed_over(tmp_path, row):
    found = events("claude", write(tmp_path / "s.jsonl", [row, claude_row("user", "真的问题", 1), row]))
    assert told(found) == [("prompt", "真的问题"), ("end", "")]


def test_claude_summary_loses_its_frame(tmp_path):
    said = ("This session is being continued from a previous conversation that ran out of "
            "context. The summary below covers the earlier"
            " portion of the conversation.\n\n<system-reminder>x</system-reminder>\n做完了登录。\n\nIf "
            "you need specific details from before compaction, read x")
    found = events("claude", write(tmp_path / "s.jsonl",
                                   [claude_row("user", said, isCompactSummary=True)]))
    assert told(found)[0] == ("compaction", "做完了登录。")


def test_claude_sidechains_lie_under_their_parent(tmp_path):
    rows = [claude_row("user", "do it", 1, isSidechain=True, agentId="a1"),
            claude_row("assistant", [tool_use(1, "Bash", {"command": "echo in-sub"})], 2,
                       isSidechain=True, agentId="a1"),
            claude_row("user", [tool_result(1, "in-sub")], 3, isSidechain=True, agentId="a1",
                       toolUseResult={"stdout": "in-sub"}),
            claude_row("assistant", [{"type": "text", "text": "sub result"}], 4, isSidechain=True,
                       agentId="a1")]
    write(tmp_path / "proj" / "S" / "subagents" / "agent-a1.jsonl", rows)
    (session, found), = m.transcript_sessions("claude", str(tmp_path))
    assert (session.id, session.parent_id, session.is_subagent) == ("claude:S/a1", "claude:S", 1)
    assert told(found) == [("observation", "[Bash] echo in-sub → in-sub"), ("answer", "sub result")]


def codex_row(kind, payload, second=0, **fields):
    return {"timestamp": "2026-03-01T10:00:%02dZ" % second, "type": kind, "payload": payload,
            **fields}


def codex_says(role, text, second=0, **fields):
    return codex_row("response_item",
                     {"type": "message", "role": role,
                      "content": [{"type": "input_text", "text": text}]}, second, **fields)


def codex_call(number, name, second=0, **given):
    return codex_row("response_item",
                     {"type": "function_call", "name": name, "call_id": "c%d" % number,
                      "arguments": json.dumps(given)}, second)


def codex_answer(number, output, second=0):
    return codex_row("response_item",
                     {"type": "function_call_output", "call_id": "c%d" % number, "output": output},
                     second)


def test_codex_rows_become_events(tmp_path):
    rows = [codex_row("session_meta", {"id": "S", "session_id": "S", "cwd": "/home/u/shop"}),
            codex_row("turn_context", {"turn_id": "T"}),
            codex_says("developer", "<permissions instructions>"),
            codex_says("user", "<environment_context>x</environment_context>"),
            codex_says("user", "迁移到 uv", 1),
            codex_row("event_msg", {"type": "agent_message", "message": "twice"}),
            codex_call(1, "exec_command", 2, cmd="uv sync"),
            codex_answer(
                1, "Chunk ID: 1\nProcess exited with code 2\nOutput:\nerror: no solution\n", 3),
            codex_call(2, "exec_command", 4,
                       cmd="apply_patch <<'E'\n*** Begin Patch\n*** Update File: pyproject.toml\n"
                           "+x\n*** End Patch\nE"),
            codex_answer(2, "Exit code: 0\nOutput:\nSuccess.", 5),
            codex_says("assistant", "ok", 6, metadata={"compaction_output": True}),
            codex_row("compacted", {"message": "Another language model started to solve this… "
                                               "assist with your own analysis:\n迁移做了一半"}, 6),
            codex_says("assistant", "已迁移到 uv。", 7)]
    found = events("codex", write(tmp_path / "2026" / "rollout-1.jsonl", rows))
    assert told(found) == [("prompt", "迁移到 uv"),
                           ("error", "[Bash] uv sync → exit 2: error: no solution"),
                           ("observation", "[apply_patch] pyproject.toml (+1 −0)"),
                           ("compaction", "迁移做了一半"), ("answer", "已迁移到 uv。"), ("end", "")]
    assert found[0].event_key.startswith("codex:S|prompt|T|")


def test_codex_subagents_lie_under_their_parent(tmp_path):
    rows = [codex_row("session_meta", {"id": "B", "session_id": "S", "cwd": "/x"}),
            codex_says("user", "sub prompt"), codex_says("assistant", "sub words")]
    found = events("codex", write(tmp_path / "r.jsonl", rows))
    assert [(e.session_id, e.event_type) for e in found] == [("codex:S/B", "answer")]


def test_missing_and_unreadable_files_are_no_failure(tmp_path):
    write(tmp_path / "empty.jsonl", [])
    (tmp_path / "dir.jsonl").mkdir()
    write(tmp_path / "note.txt", CONVERSATION)
    assert events("claude", tmp_path) == [] and events("codex", tmp_path / "none") == []


def test_an_enormous_line_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(m, "ROW_BYTES", 2000)
    found = events("claude", write(tmp_path / "s.jsonl",
                                   [claude_row("user", "x" * 9000), claude_row("user", "短的问题", 1)]))
    assert told(found) == [("prompt", "短的问题"), ("end", "")]


def test_an_imported_session_is_distilled(tmp_path):
    pool = m.Pool(str(tmp_path / "pool.db"))
    pool.record_all(events("claude", write(tmp_path / "s.jsonl", CONVERSATION)))
    made = m.distill_sessions(pool, lambda session, summary: None, m.Config(),
                              m.utc_seconds("2026-03-02"))
    assert [s.summary for s in made] == ["用户要求修一下登录超时。结果：已修复：超时改为 30 秒。"]
    assert made[0].files_modified == ("login.py",)
    pool.close()
