"""What a hook costs: CPU of the launcher against a bare interpreter with json, re, sqlite3, taken in turns.

    python3 tests/bench/hooks.py [--rounds 15] [--parallel 32] [--events 0]

Prints a table. `--events N` fills the pool with N events first.
"""
import argparse
import json
import os
import py_compile
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "..")]
import memory_tiered as m  # noqa: E402

WORDS = """cart total price order session token_bucket src/api/client.ts tests/test_cart.py::test_total PASSED FAILED
warning: deprecated 价格 计算 正确 缓存 命中 数据库 连接 超时 已修复 重试 0.03s 128 KiB line 42 def main(argv): return None
import json const result = await fetch(url) INFO 2026-03-01 12:00:01 worker-3 started git commit a1b2c3d merge branch feature/login
README.md updated node_modules/.bin/vitest run built in 1.2s docker compose up -d redis ready GET /api/v1/items 200 ok user_id=7"""
BASE = [sys.executable, "-I", "-S", "-c", "import json, re, sqlite3"]


class Bench:
    """A home with the program and its launcher installed."""

    def __init__(self):
        self.home = tempfile.mkdtemp(prefix="bench-hooks-")
        self.app = os.path.join(self.home, "app")
        os.mkdir(self.app)
        with open(m.__file__, encoding="utf-8") as file:
            program = file.read()
        for name, text in (("memory_tiered.py", program), *((part, m.program_part(program, names)) for part, names in m.PROGRAM_PARTS.items()),
                           ("hook.py", m.HOOK_LAUNCHER.lstrip())):
            with open(os.path.join(self.app, name), "w", encoding="utf-8") as file:
                file.write(text)
            if name != "hook.py":
                py_compile.compile(os.path.join(self.app, name),
                                   invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
        self.pool = os.path.join(self.home, "pool.db")
        self.env = {"HOME": self.home, "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        self.hook = [sys.executable, "-I", "-S", os.path.join(self.app, "hook.py"), "--agent", "claude",
                     "--db", os.path.join(self.home, "state.db"), "--pool", self.pool]
        self.number = 0

    def payload(self, event="PostToolUse", size=1600, **fields):
        self.number += 1
        words = WORDS.split()
        pick = random.Random(self.number)
        text = "\n".join(" ".join(pick.choices(words, k=8)) for _ in range(size // 60 + 1))[:size]
        row = {"session_id": "bench", "transcript_path": "/home/u/t.jsonl", "cwd": self.home, "permission_mode": "default",
               "hook_event_name": event, "tool_name": "Bash", "tool_use_id": "toolu_%d" % self.number,
               "tool_input": {"command": "pytest -q tests/test_%d.py" % self.number, "description": "Run the tests"},
               "tool_response": {"stdout": text, "stderr": "", "interrupted": False, "isImage": False}, "duration_ms": 20}
        return json.dumps({**row, **fields}, ensure_ascii=False).encode()


def cpu_ms(command, env=None, stdin=b""):
    """User and system CPU of one process, in milliseconds."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env)
    process.stdin.write(stdin)
    process.stdin.close()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = status
    assert status == 0, status
    return (used.ru_utime + used.ru_stime) * 1000


def compare(bench, rounds, make):
    """(base, hook, ratio) by the median, then by the least: on a busy machine trust the least."""
    pairs = []
    for _ in range(rounds):
        pairs.append((cpu_ms(BASE), cpu_ms(bench.hook, bench.env, make())))
    base, hook = zip(*pairs)
    return (statistics.median(base), statistics.median(hook), statistics.median(h / b for b, h in pairs),
            min(base), min(hook), min(hook) / min(base))


def parallel(bench, count):
    """Latencies in ms of `count` hooks started together, and how many events are in the pool after."""
    waiting = []
    for _ in range(count):
        started = time.perf_counter()
        process = subprocess.Popen(bench.hook, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=bench.env)
        process.stdin.write(bench.payload("PostToolUseFailure", error="Exit code 1\nboom %d" % bench.number))
        process.stdin.close()
        waiting.append((started, process))
    latencies = []
    while waiting:
        for pair in [pair for pair in waiting if pair[1].poll() is not None]:
            waiting.remove(pair)
            latencies.append((time.perf_counter() - pair[0]) * 1000)
        time.sleep(0.002)
    return sorted(latencies)


def fill(pool_path, count):
    """Put many events into the pool."""
    pool = m.Pool(pool_path)
    for start in range(0, count, 5000):
        pool.record_all(m.NeutralEvent(
            "claude:s%d" % (i // 200), "claude", "observation", 1.77e9 + i, "fill%d" % i, "/src/p%d" % (i % 50), "Bash",
            "[Bash] make step %d → built %d files, 缓存命中" % (i, i % 97), '{"tool_input":{"command":"make %d"},"output":"ok %d"}' % (i, i),
            host_id="s%d" % (i // 200)) for i in range(start, min(count, start + 5000)))
    pool.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--parallel", type=int, default=32)
    parser.add_argument("--events", type=int, default=0)
    args = parser.parse_args()
    bench = Bench()
    if args.events:
        fill(bench.pool, args.events)
    cpu_ms(bench.hook, bench.env, bench.payload())
    print("%-24s %9s %9s %7s %9s %9s %7s" % ("CPU: median, then least", "base ms", "hook ms", "ratio", "base ms", "hook ms", "ratio"))
    rows = (("ignored (PreToolUse)", lambda: bench.payload("PreToolUse")),
            ("tool result, 2 KB", bench.payload),
            ("tool result, 1 MB", lambda: bench.payload(size=600_000)),
            ("failure, 2 KB", lambda: bench.payload("PostToolUseFailure", error="Exit code 1\nboom %d" % bench.number)),
            ("prompt, no store", lambda: bench.payload("UserPromptSubmit", size=0, prompt="请修复第 %d 个测试" % bench.number)))
    for name, make in rows:
        print("%-24s %9.1f %9.1f %7.2f %9.1f %9.1f %7.2f" % ((name,) + compare(bench, args.rounds, make)))
    pool = m.Pool(bench.pool)
    before = sum(pool.events.counts().values())
    latencies = parallel(bench, args.parallel)
    pool.catch_up()
    lost = args.parallel - (sum(pool.events.counts().values()) - before)
    print("%d at once: p50 %.0f ms, p95 %.0f ms, max %.0f ms; lost %d" % (
        args.parallel, latencies[len(latencies) // 2], latencies[int(len(latencies) * 0.95)], latencies[-1], lost))
    pool.close()
    shutil.rmtree(bench.home)


if __name__ == "__main__":
    main()
