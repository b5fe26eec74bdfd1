"""The command line as a person and a program use it."""
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import memory_tiered as m
from conftest import TOOL


def test_the_six_steps(cli, home):
    assert cli("init").stdout.startswith("✅ 数据库初始化完成")
    cli("add-l1", "--session-id", "test-001", "--summary", "首次使用记忆系统，体验极佳", "--importance", "0.9")
    assert "首次使用记忆系统" in cli("search-all", "--keyword", "记忆").stdout
    cli("sync", "--level", "all")
    notes = list((home / "agent-memory/memory/L1-关键摘要").glob("*.md"))
    assert len(notes) == 1 and "importance: 0.9" in notes[0].read_text(encoding="utf-8")


@pytest.mark.parametrize("args, code, word", [
    ([], 2, "usage"), (["nosuch"], 2, "usage"), (["search-all"], 2, "usage"),
    (["search"], 2, "empty_query"),
    (["get", "胡说"], 2, "bad_ref"), (["get", "L1:999"], 1, "not_found"),
    (["get", "zzzzzzzzzzzz"], 1, "not_found"),
    (["purge", "L1:1"], 1, "not_found"), (["add-l1", "--summary", "没有会话"], 2, "usage"),
    (["add-l1", "--session-id", "s", "--summary", "好", "--importance", "1e999"], 2,
     "bad_importance"),
    (["list", "--level", "4"], 2, "usage"), (["list", "--limit", "0"], 2, "usage"),
    (["list", "--status", "x"], 2, "bad_status"),
    (["list", "--now", "昨天"], 2, "bad_time"),
    (["config", "set", "decay.rate", "快"], 2, "bad_value"),
    (["config", "set", "decay.rate", "1.5"], 2, "bad_value"),
    (["config", "set", "decay.rate", "-1"], 2, "bad_value"),
    (["config", "set", "promote.importance", "2"], 2, "bad_value"),
    (["config", "set", "recall.max_items", "2.5"], 2, "bad_value"),
    (["config", "set", "recall.freshness_days", "0"], 2, "bad_value"),
    (["config", "set", "enable_inject", "maybe"], 2, "bad_value"),
    (["config", "set"], 2, "bad_setting"), (["list", "--limit", "1e3"], 2, "usage"),
    (["list", "--limit=-5"], 2, "usage"), (["search", "x", "--limit", "1000001"], 2, "usage"),
    (["list", "--level", ""], 2, "usage"), (["list", "--level", "l12"], 2, "usage"),
    (["export", "--out", "无此目录/x"], 2, "no_file"), (["import", "records", "."], 2, "no_file"),
    (["config", "set", "no.such", "1"], 2, "bad_setting"),
    (["import", "records", "没有.jsonl"], 2, "no_file"),
    (["import", "markdown", "没有"], 2, "no_folder"), (["review", "approve", "7"], 1, "not_found"),
    (["supersede", "L1:1", "--by", "L1:2"], 1, "not_found"), (["--db"], 2, "usage")])
def test_errors_are_one_line_with_a_code(run, args, code, word):
    got, out, err = run(*args)
    assert got == code and not out and err.startswith("❌ ") and err.count("\n") == 1
    assert " · " in err
    got, out, err = run(*args, "--json")
    assert got == code and not out and json.loads(err)["error"]["code"] == word


def test_options_stand_before_or_after_the_command(run, tmp_path):
    for args in (["--db", tmp_path / "a.db", "--json", "list"],
                 ["list", "--db", tmp_path / "a.db", "--json"]):
        code, out, _ = run(*args)
        assert code == 0 and json.loads(out) == {"memories": []}


@pytest.mark.parametrize("value", ["--", "-O2", "-", "--help", "=x", "", "-1", "a=--"])
def test_values_may_begin_with_dashes(run, value):
    if value not in ("", "-"):
        assert run("add-l1", "--session-id", "s", "--summary=" + value)[0] == 0
        assert json.loads(run("list", "--json")[1])["memories"][0]["text"] == value
    assert run("search-all", "--keyword=" + value, "--no-touch")[0] == (0 if value else 2)


def test_stdin_gives_a_text(cli):
    done = cli.json("add-l1", "--session-id", "s", "--summary", "-", stdin="从管道来的一段话")
    assert done["memory"]["text"] == "从管道来的一段话"


def test_tags_both_ways(run):
    run("add-l1", "--session-id", "s", "--summary", "带标签的记忆", "--tag", "a b", "--tag", "乙",
        "--tags", "c，d,乙")
    assert json.loads(run("list", "--json")[1])["memories"][0]["tags"] == ["a b", "乙", "c", "d"]


def test_batch_search_answers_with_external_ids(run, tmp_path):
    docs = tmp_path / "d.jsonl"
    docs.write_text('{"id": "甲", "text": "猫喜欢晒太阳"}\n{"id": "乙", "text": "狗喜欢追球"}\n',
                    encoding="utf-8")
    asked = tmp_path / "q.jsonl"
    asked.write_text('{"id": 1, "text": "谁追球"}\n{"id": 2, "text": "猫"}\n{"id": 3, "text": "量子"}\n',
                     encoding="utf-8")
    run("import", "records", docs)
    out = [json.loads(x) for x in run("search", "--batch", asked, "--no-touch")[1].splitlines()]
    assert [(x["id"], x["ids"][:1]) for x in out] == [(1, ["乙"]), (2, ["甲"]), (3, [])]


def test_now_rules_every_command(run):
    run("add-l1", "--session-id", "s", "--summary", "从前的一条记忆", "--now", "2020-01-01")
    shown = json.loads(run("list", "--json", "--now",
                           "2020-01-02T08:00:00+08:00")[1])["memories"][0]
    assert shown["created_at"] == "2020-01-01T00:00:00Z"
    assert shown["decay_score"] == pytest.approx(0.99 ** 24)


@pytest.mark.parametrize("now", [
    "0001-01-01", "0001-01-01T00:00:00+14:00", "1969-12-31T23:59:59", "9999-12-31T23:59:59",
    "9999-12-31T23:59:59-14:00"])
def test_the_ends_of_time_are_no_trouble(run, now):
    run("add-l1", "--session-id", "s", "--summary", "时间的边界在哪里")
    for words in ("add-l1 --session-id t --summary 边界上的记忆", "search 边界", "recall 时间的边界",
                  "get L1:1", "decay --dry-run", "decay", "promote", "distill", "prune",
                  "forget L1:1", "restore L1:1", "sync", "export", "backup", "status", "stats"):
        code, _, err = run(*words.split(), "--now", now)
        assert code == 0, (words, err)


@pytest.mark.skipif(not hasattr(os, "fork") or os.geteuid() == 0, reason="root may write anywhere")
def test_reading_goes_on_where_nothing_can_be_written(run, home):
    run("add-l1", "--session-id", "s", "--summary", "只读也要能读的记忆")
    run("events")
    state = home / ".hermes/state"
    for path in [*state.iterdir(), state]:
        path.chmod(0o555)
    try:
        for words in ("search 只读", "recall 只读也要能读", "get L1:1", "list", "history L1:1", "stats",
                      "export --events --journal", "status", "review", "events", "sessions",
                      "decay --dry-run", "promote --dry-run", "prune --dry-run",
                      "backup %s" % home):
            assert run(*words.split())[0] == 0, words
        assert run("update", "L1:1", "--title", "x")[0] == 3
        assert run("config", "set", "decay.rate", "0.9")[0] == 3
    finally:
        state.chmod(0o755)


@pytest.mark.parametrize("text", ['{"decay.rate": 7}', '{"decay.rate": "快"}', "[]", "[" * 9999])
def test_settings_that_make_no_sense_are_named(run, home, text):
    run("init")
    (home / ".hermes/state/memory-tiered.json").write_text(text, encoding="utf-8")
    code, _, err = run("list")
    assert code == 3 and "memory-tiered.json" in err


def test_config_is_a_small_file_beside_the_store(run, home):
    assert run("config", "set", "decay.rate", "0.999")[0] == 0
    assert json.loads((home / ".hermes/state/memory-tiered.json").read_text()) == {
        "decay.rate": 0.999}
    assert json.loads(run("config", "get", "decay.rate", "--json")[1]) == {"decay.rate": 0.999}
    run("config", "set", "exclude_projects", "/tmp/*,~/秘密")
    run("config", "unset", "decay.rate")
    assert json.loads(run("config", "--json")[1])["exclude_projects"] == ["/tmp/*", "~/秘密"]
    (home / ".hermes/state/memory-tiered.json").write_text("{broken")
    assert run("list")[0] == 3


def test_a_closed_pipe_is_quiet(cli):
    for number in range(30):
        cli("add-l1", "--session-id", "s", "--summary",
            "很多很多行的输出 %d" % number) if number < 3 else None
    shell = "'%s' '%s' export | true" % (sys.executable, TOOL)
    done = subprocess.run(["sh", "-c", shell], capture_output=True, env=cli.env)
    assert b"Traceback" not in done.stderr and b"Error" not in done.stderr


def test_long_and_hostile_queries_are_fine(run):
    run("add-l1", "--session-id", "s", "--summary", "普通的一条记忆")
    for query in ("a" * 1_000_000, "记忆 " * 200_000, "\x01\x02", "'; DROP TABLE memory_l1;--", '"',
                  "NEAR(a b)", "（）", "\u202e"):
        assert run("search-all", "--keyword=" + query, "--no-touch")[0] == 0
    assert run("add-l1", "--session-id", "s", "--summary", "长" * 5_000_000)[0] == 2


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX signals")
def test_a_killed_writer_leaves_whole_memories(cli, home):
    cli("init")
    for pause in (0.05, 0.1, 0.15, 0.2, 0.25):
        text = "begin-%s %s end" % (pause, "填充" * 20_000)
        writer = subprocess.Popen([sys.executable, TOOL, "add-l1", "--session-id", "k", "--summary",
                                   text],
                                  env=cli.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(pause)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    texts = [x["text"] for x in cli.json("list", "--all")["memories"]]
    assert all(t.startswith("begin-") and t.endswith(" end") for t in texts)
    assert cli("doctor", code=None).returncode == 0


def test_parallel_writers_lose_nothing(cli):
    running = [subprocess.Popen([sys.executable, TOOL, "add-l1", "--session-id", "p", "--summary",
                                 "并行写入的第 %d 条" % i],
                                env=cli.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
               for i in range(12)]
    assert [(p.communicate()[1], p.returncode) for p in running] == [(b"", 0)] * 12
    assert len({x["text"] for x in cli.json("list", "--all")["memories"]}) == 12


def test_version_and_every_help(run, capsys):
    for args in (["--version"], ["--help"], *([name, "--help"] for name in m.COMMANDS)):
        with pytest.raises(SystemExit) as done:
            m.main(args)
        assert done.value.code == 0 and capsys.readouterr().out


def test_what_nobody_foresaw_is_one_line_and_a_log(run, monkeypatch, home):
    def broken(memory, options):
        """坏 · Broken."""
        raise RuntimeError("boom")

    monkeypatch.setitem(m.COMMANDS, "status", (broken, []))
    code, out, err = run("status")
    assert code == 1 and err.count("\n") == 1 and "boom" in err
    assert json.loads(run("status", "--json")[2])["error"]["code"] == "crash"
    assert "RuntimeError" in (home / ".hermes/state/memory-tiered.log").read_text(encoding="utf-8")


def test_the_published_place_works(home):
    """The file copied into the vault folder and run from there."""
    vault = home / "agent-memory/memory"
    vault.mkdir(parents=True)
    copy = vault / "memory_tiered.py"
    copy.write_bytes(open(TOOL, "rb").read())
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    for args in (["init"], ["add-l1", "--session-id", "s", "--summary", "在库里也能运行"], ["sync"],
                 ["sync"]):
        subprocess.run([sys.executable, copy, *args], check=True, env=env, cwd=vault,
                       capture_output=True)
    assert copy.exists() and len(list((vault / "L1-关键摘要").glob("*.md"))) == 1


PROMPT = {"session_id": "h1", "hook_event_name": "UserPromptSubmit", "prompt": "支付网关的超时时间应该怎么设置？",
          "cwd": "/tmp"}


def test_a_prompt_is_given_what_another_agent_learned_once(cli, home):
    cli("add-l1", "--session-id", "s", "--agent", "codex", "--summary", "支付网关超时设为 3 秒，超过就重试两次",
        "--importance", "0.8")
    first = cli("hook", "--agent", "claude", stdin=json.dumps(PROMPT)).stdout
    context = json.loads(first)["hookSpecificOutput"]
    assert context["hookEventName"] == "UserPromptSubmit"
    assert "(L1:1)" in context["additionalContext"]
    assert cli("hook", "--agent", "claude", stdin=json.dumps(PROMPT)).stdout == ""  # once a session
    assert cli("hook", "--agent", "claude",
               stdin=json.dumps({**PROMPT, "session_id": "h2", "prompt": "继续"})).stdout == ""
    cli("config", "set", "enable_inject", "false")
    assert cli("hook", "--agent", "claude",
               stdin=json.dumps({**PROMPT, "session_id": "h3"})).stdout == ""
    cli("get", "L1:1")
    report = cli.json("stats", "--recall")
    assert report["totals"]["items"] == 1 and report["totals"]["fetched_share"] == 1.0
    assert report["injections"][0]["session_id"] == "claude:h1"
    assert 0 < report["share_of_session"]["claude:h1"] < 1


def test_a_session_starts_with_its_background(cli, tmp_path):
    project = tmp_path / "web shop"
    project.mkdir()
    rows = ((["add-l1", "--session-id", "s", "--summary", "用户偏好简体中文回答"], "user_profile", []),
            (["add-l2", "--category", "架构", "--knowledge", "订单服务用事件驱动，队列选 RabbitMQ"],
             "project_semantic", ["--project", project]),
            (["add-l1", "--session-id", "s", "--summary", "正在把缓存换成 Redis"], "task_state",
             ["--project", project]),
            (["add-l2", "--category", "架构", "--knowledge", "另一个项目的决定不该出现"], "project_semantic",
             ["--project", "别处"]))
    for args, kind, more in rows:
        cli(*args, "--type", kind, *more)
    start = {"session_id": "b1", "hook_event_name": "SessionStart", "source": "startup",
             "cwd": str(project)}
    text = json.loads(cli("hook", "--agent", "claude",
                          stdin=json.dumps(
                              start)).stdout)["hookSpecificOutput"]["additionalContext"]
    assert all(word in text for word in ("简体中文", "RabbitMQ", "Redis")) and "另一个项目" not in text
    assert len(text) <= 800
    assert cli("hook", "--agent", "claude", stdin=json.dumps(start)).stdout == ""


def test_recall_explains_itself(run):
    run("add-l1", "--session-id", "s", "--summary", "部署前先跑迁移脚本，失败就回滚")
    run("add-l1", "--session-id", "t", "--summary", "部署前先跑迁移脚本，别忘了备份", "--project", "别的项目")
    found = json.loads(run("recall", "部署前要先跑迁移脚本吗", "--json")[1])
    assert [i["ref"] for i in found["items"]] == ["L1:1"] and found["chars"] == len(found["text"])
    code, out, _ = run("recall", "部署前要先跑迁移脚本吗", "--explain")
    assert "chosen" in out and run("recall", "量子引力是什么")[1] == ""


def test_events_and_sessions_are_listed_and_found(cli):
    for agent, prompt in (("claude", "把订单队列换成 RabbitMQ 并写好回滚脚本"),
                          ("codex", "Fix the flaky checkout test in CI please")):
        event = {"session_id": "e-" + agent, "hook_event_name": "UserPromptSubmit",
                 "prompt": prompt, "cwd": "/tmp"}
        cli("hook", "--agent", agent, stdin=json.dumps(event))
    assert [e["agent"] for e in cli.json("events", "RabbitMQ")["events"]] == ["claude"]
    assert [e["agent"] for e in cli.json("events", "checkout", "--agent",
                                         "codex")["events"]] == ["codex"]
    assert cli.json("events", "checkout", "--agent", "claude-code")["events"] == []
    assert len(cli.json("events")["events"]) == 2 and len(cli.json("sessions")["sessions"]) == 2
    assert cli.json("search-all", "--keyword", "RabbitMQ",
                    "--events")["events"][0]["session_id"] == "claude:e-claude"


def test_install_and_uninstall_from_the_command_line(cli, home):
    before = sorted(p.relative_to(home) for p in home.rglob("*"))
    assert cli.json("install", "claude", "--dry-run")["dry_run"]
    assert sorted(p.relative_to(home) for p in home.rglob("*")) == before
    cli("install", "claude", "codex")
    assert "hooks" in json.loads((home / ".claude/settings.json").read_text(encoding="utf-8"))
    assert any(f["action"] == "unchanged" for f in cli.json("install", "claude")["facts"])
    cli("uninstall", "all")
    assert [p for p in home.rglob("*") if p.is_file() and "hermes/state" not in str(p)] == []
    assert cli("install", "nosuch", code=2).stderr.startswith("❌")
