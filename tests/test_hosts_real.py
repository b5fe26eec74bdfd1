"""The real host programs on a wired-up home, offline: events arrive, memories reach the others.

Runs only with REAL_AGENTS=<folder with clients/, hermes/ and openclaw/ scripts>, root and iproute2;
each client is fetched from its registry on first use.
"""
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import memory_tiered as m

SCRIPTS = os.environ.get("REAL_AGENTS", "")
CACHE = os.environ.get("AGENT_SCRIPTS_CACHE") or os.path.expanduser("~/.cache/agent-harness")
SECRET = "海豚项目的部署脚本是 deploy/release.sh，回滚用 rollback.sh"
CODEX_CONFIG = """# mine
model = "mock-model"
model_provider = "mock"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.mock]
name = "mock"
base_url = "http://127.0.0.1:9/v1"
wire_api = "responses"
env_key = "MOCK_KEY"

[analytics]
enabled = false
"""

pytestmark = pytest.mark.skipif(
    not SCRIPTS or not shutil.which("unshare") or getattr(os, "getuid", lambda: 1)() != 0,
    reason="real host programs: set REAL_AGENTS to the harness folder and be root")


@pytest.fixture
def wired(home, tmp_path):
    """A home with every agent installed, its store and pool in a place of their own."""
    places = m.Places({"db": str(tmp_path / "库 it's" / "s.db"),
                       "pool": str(tmp_path / "库 it's" / "p.db")})
    (home / ".codex").mkdir()
    (home / ".codex/config.toml").write_text(CODEX_CONFIG)
    m.install_agents(["all"], places)
    m.Memory(places.db, places.pool).store  # made, so that hooks may recall
    return places


def run(*words, **env):
    done = subprocess.run([str(word) for word in words], capture_output=True, encoding="utf-8",
                          errors="replace", timeout=400,
                          env={**os.environ, "AGENT_SCRIPTS_CACHE": CACHE, **env},
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def client(name, home, tmp_path, steps, prompt, *more):
    """Run one of the two scripted clients; returns what its model was sent, as one text."""
    folder, script = tmp_path / ("run-" + name), tmp_path / ("script-%s.json" % name)
    shutil.rmtree(folder, ignore_errors=True)
    script.write_text(json.dumps(steps, ensure_ascii=False), encoding="utf-8")
    run("bash", Path(SCRIPTS, "clients", "run_%s.sh" % name), "--script", script, "--home", home,
        "--run", folder, "--prompt", prompt, "--quiet", *more)
    return "\n".join(json.dumps(json.loads(path.read_text()), ensure_ascii=False)
                     for path in sorted((folder / "requests").glob("*.json")))


def events(places, agent):
    return [e.event_type for e in reversed(m.Pool(places.pool).events.recent(agent=agent))]


def save_with_claude(home, tmp_path):
    return client("claude", home, tmp_path, [
        {"tool_use": {"name": "ToolSearch",
                      "input": {"query": "select:mcp__memory-tiered__save_memory"}}},
        {"tool_use": {"name": "mcp__memory-tiered__save_memory", "input": {"text": SECRET}}},
        {"tool_use": {"name": "Bash",
                      "input": {"command": "echo deploying the dolphin project to staging",
                                "description": "d"}}},
        {"tool_use": {"name": "Bash",
                      "input": {"command": "echo broken; exit 3", "description": "d"}}},
        {"text": "海豚项目已经部署到预发环境，健康检查全部通过，回滚脚本也逐行检查过了，可以放心上线。"}],
        "请部署海豚项目", "--", "--allowedTools", "Bash,mcp__memory-tiered__save_memory")


def test_claude_saves_codex_hermes_and_openclaw_are_told(wired, home, tmp_path):
    save_with_claude(home, tmp_path)
    assert events(wired, "claude") == ["prompt", "observation", "error", "answer"]
    memory = m.Memory(wired.db, wired.pool)
    assert [r.text for r in memory.list()] == [SECRET]

    sent = client("codex", home, tmp_path, [
        {"tool_use": {"name": "search_memory", "namespace": "mcp__memory_tiered",
                      "input": {"query": "回滚"}}},
        {"tool_use": {"name": "exec_command",
                      "input": {"cmd": "echo codex looks at the deploy folder of the project"}}},
        {"text": "部署脚本是 deploy 目录里的 release.sh，已经确认过它的位置和用法，可以放心使用。"}], "海豚项目的部署脚本在哪里？")
    answers = sent.split("function_call_output")
    assert SECRET in answers[0], "injected before the first answer"
    assert SECRET in answers[-1] or sent.count(SECRET) >= 2, "and found by the MCP tool"
    assert events(wired, "codex") == ["prompt", "observation", "answer"]

    script = tmp_path / "hermes.json"
    script.write_text(json.dumps({"default": "好的。", "aux": "标题", "steps": [
        {"match": "海豚", "tool_calls": [{"name": "search_memory", "arguments": {"query": "回滚"}}]},
        {"match": "海豚", "tool_calls": [{"name": "terminal",
                                        "arguments": {"command": "echo hermes looks at the deploy "
                                                                 "folder"}}]},
        {"match": "海豚", "content": "部署脚本在 deploy/release.sh，回滚用同一个目录里的 rollback.sh，两者都在仓库里。"}]},
                                 ensure_ascii=False))
    out = run("bash", Path(SCRIPTS, "hermes/run_hermes.sh"), "-p",
              home / ".hermes/plugins/memory_tiered", "-s", script,
              "-o", tmp_path / "hermes", "海豚项目的部署脚本在哪里？", "再说一次海豚的部署脚本？", PORT="8391")
    sent = (tmp_path / "hermes/requests.jsonl").read_text()
    first = next(line for line in sent.splitlines() if '"n"' in line and "海豚项目的部署脚本在哪里" in line)
    assert "memory-context" in first and SECRET in first, out[-3000:]
    last = json.loads([line for line in sent.splitlines() if '"n"' in line][-1])["body"]["messages"]
    told = [message for message in last if message["role"] == "user"
            and SECRET in json.dumps(message, ensure_ascii=False)]
    assert len(told) == 1, "told once in a conversation, though it was continued in another process"
    assert events(wired, "hermes")[:3] == ["prompt", "observation", "answer"]
    assert all(s.ended_at for s in m.Pool(wired.pool).sessions.list(agent="hermes"))


def test_claude_is_not_stopped_by_a_program_that_is_gone(wired, home, tmp_path):
    for name in ("hook.py", "memory_tiered.py"):
        (home / "agent-memory/app" / name).unlink()
        sent = client("claude", home, tmp_path, [{"text": "final"}], "still there?")
        assert "still there?" in sent


def test_codex_is_not_stopped_by_a_program_that_is_gone(wired, home, tmp_path):
    (home / "agent-memory/app/hook.py").unlink()
    assert "still there?" in client("codex", home, tmp_path, [{"text": "final"}], "still there?")


def test_codex_writes_its_own_settings_behind_ours(wired, home, tmp_path):
    """Trust and MCP servers that Codex adds survive an uninstall."""
    binary = Path(CACHE, "codex-0.171.0/node_modules/@openai/codex-linux-x64",
                  "vendor/x86_64-unknown-linux-musl/bin/codex")
    run(binary, "mcp", "add", "other", "--", "true", CODEX_HOME=str(home / ".codex"))
    assert m.agent_status(["codex"], wired)[0]["current"]
    m.uninstall_agents(["all"], wired)
    config = (home / ".codex/config.toml").read_text()
    assert config.startswith(CODEX_CONFIG) and "[mcp_servers.other]" in config
    assert "memory_tiered" not in config


def test_hermes_shows_the_provider(wired, home):
    out = run("unshare", "-n", Path(CACHE, "hermes/bin/hermes"), "memory", "status",
              HERMES_HOME=str(home / ".hermes"), NO_COLOR="1")
    assert "available" in out and "memory_tiered" in out and "← active" in out


def test_openclaw_offers_the_tools_and_the_skill(wired, home, tmp_path):
    save_with_claude(home, tmp_path)
    node = Path(CACHE, "openclaw/node24/node_modules/node/bin/node")
    openclaw = [node, Path(CACHE, "openclaw/node_modules/openclaw/openclaw.mjs")]
    env = {"PATH": "%s:%s" % (node.parent, os.environ["PATH"]), "NO_COLOR": "1"}
    assert "memory-tiered" in run(*openclaw, "mcp", "list", **env)
    assert "search_memory" in run(*openclaw, "mcp", "probe", "memory-tiered", "--json", **env)
    listed = run(*openclaw, "skills", "list", "--json", **env)
    skills = json.loads(listed[listed.index("{"):])["skills"]
    assert [s["eligible"] for s in skills if s["name"] == "memory-tiered"] == [True]
    m.uninstall_agents(["openclaw"], wired)
    path = home / ".openclaw/openclaw.json"
    left = json.loads(path.read_text()) if path.exists() else {}
    assert "memory-tiered" not in json.dumps(left)
