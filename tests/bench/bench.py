#!/usr/bin/env python3
"""Speed and size of memory_tiered.py, as one table.

    python3 tests/bench/bench.py                 start-up, then stores of 1k, 10k and 100k memories
    python3 tests/bench/bench.py 1000 1000000    other sizes

Times are CPU (user + system); start-up is told as a ratio to a bare interpreter measured in turns with
it, because machines differ and are shared. Nothing here is a test.
"""
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "memory_tiered.py"
SYLLABLES = "ka lo mi ren tas pro con der ver ing sto bra phi dex gra nel or tu bas que".split()
HAN = "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后多定行学法所民得经"


def vocabulary(count, seed):
    """Words of two languages, the earlier the more common (Zipf), as in real text."""
    rng = random.Random(seed)
    english = ["".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4))) for _ in range(count)]
    chinese = ["".join(rng.choice(HAN) for _ in range(2)) for _ in range(count)]
    weights = [1 / (rank + 10) for rank in range(count)]
    total, sums = 0.0, []
    for weight in weights:
        total += weight
        sums.append(total)
    return english, chinese, sums


def words(rng, kind, count, known=vocabulary(20_000, 7)):
    """So many words of a language (0 English, 1 Chinese)."""
    return rng.choices(known[kind], cum_weights=known[2], k=count)


def texts(count, seed=1):
    """Memories as people write them: English, Chinese, and code words."""
    rng = random.Random(seed)
    for _ in range(count):
        if rng.random() < 0.5:
            yield "%s，%s_%d 已经%s" % ("".join(words(rng, 1, rng.randint(8, 20))), words(rng, 0, 1)[0],
                                      rng.randint(1, 500), words(rng, 1, 1)[0])
        else:
            yield "%s in %s%s.py: case %d" % (" ".join(words(rng, 0, rng.randint(10, 25))), words(rng, 0, 1)[0],
                                              words(rng, 0, 1)[0].title(), rng.randint(1, 5000))


def questions(count, seed=2):
    """Questions of three to six content words."""
    rng = random.Random(seed)
    for _ in range(count):
        yield rng.choice([
            "%s是怎么%s的" % ("".join(words(rng, 1, 3)), words(rng, 1, 1)[0]),
            "how does the %s %s handle %s and %s" % tuple(words(rng, 0, 4)),
            "%s %s_%d" % ("".join(words(rng, 1, 2)), words(rng, 0, 1)[0], rng.randint(1, 500))])


def cpu_of(command, stdin=b"", env=None):
    """CPU seconds of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, input=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def median(values):
    return sorted(values)[len(values) // 2]


def ratio(command, base, turns=15, env=None):
    """Median CPU of a command over that of a base, run in turns."""
    pairs = [(cpu_of(command, env=env), cpu_of(base, env=env)) for _ in range(turns)]
    return median([a for a, _ in pairs]) / median([b for _, b in pairs]), median([a for a, _ in pairs])


def start_up(folder):
    """Ratios of start-up and of a cold search, with the module's byte code cached."""
    python = [sys.executable, "-I", "-S", "-c"]
    load = "import sys; sys.path.insert(0, %r); import memory_tiered as m" % str(ROOT)
    bare = python + ["import json, re, sqlite3"]
    with_argparse = python + ["import json, re, sqlite3, argparse"]
    subprocess.run(python + [load], check=True)
    fill(folder / "start.db", 10_000)
    search = python + [load + "; sys.exit(m.main(['search-all', '--keyword', '灰度 部署', '--db', %r]))" % str(folder / "start.db")]
    for name, command, base in (("import", python + [load], bare), ("cold search-all of 10,000", search, with_argparse)):
        times, seconds = ratio(command, base)
        print("%-28s %.2f x bare   (%.1f ms; bare and the rest in turns)" % (name, times, 1000 * seconds))


def fill(path, count):
    """A store of so many memories through `import records`; (records/s, peak MiB)."""
    source = path.with_suffix(".jsonl")
    with open(source, "w", encoding="utf-8") as file:
        for number, text in enumerate(texts(count)):
            file.write(json.dumps({"id": "m%d" % number, "text": text, "session": "s%d" % (number // 8), "project": "p%d" % (number % 7)},
                                  ensure_ascii=False) + "\n")
    seconds, _, peak = measured(["import", "records", source, "--db", path])
    source.unlink()
    return count / seconds, peak


def measured(args):
    """(CPU seconds, wall seconds, peak MiB) of one command in a process of its own."""
    code = ("import resource, runpy, sys; sys.argv = sys.argv[1:]\n"
            "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
            "except SystemExit as done:\n"
            "    assert not done.code, done.code\n"
            "u = resource.getrusage(resource.RUSAGE_SELF); print('@', u.ru_utime + u.ru_stime, u.ru_maxrss)")
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code, str(TOOL), *map(str, args)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-2000:]
    _, cpu, peak = done.stdout.splitlines()[-1].split()
    return float(cpu), time.monotonic() - started, int(peak) / (1 << 20 if sys.platform == "darwin" else 1024)


def in_process(path):
    """CPU milliseconds of a warm search (p50, p95) and of adding one memory."""
    code = """
import sys, time, resource; sys.path.insert(0, %r); sys.path.insert(0, %r)
import memory_tiered as m, bench
memory = m.Memory(store=%r)
def cpu(f):
    t = time.process_time(); f(); return 1000 * (time.process_time() - t)
asked = list(bench.questions(240))
[memory.search(q, touch=False) for q in asked[:40]]
times = sorted(cpu(lambda: memory.search(q, touch=False)) for q in asked[40:])
added = sorted(cpu(lambda: memory.add(1, "新的一条记忆 %%d about the %%s" %% (i, q), session_id="bench")) for i, q in enumerate(asked[:60]))
print(times[len(times) // 2], times[int(len(times) * .95)], added[len(added) // 2],
      resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
""" % (str(ROOT), str(Path(__file__).parent), str(path))
    out = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout
    return [float(x) for x in out.split()]


def sizes(folder, counts):
    """One row a size."""
    print("%9s %9s %7s %7s %7s %7s %7s %8s %8s %8s %7s" % (
        "memories", "import/s", "p50 ms", "p95 ms", "add ms", "decay s", "again s", "sync s", "again s", "MiB peak", "MiB db"))
    for count in counts:
        path, vault = folder / ("b%d.db" % count), folder / ("v%d" % count)
        rate, peak = fill(path, count)
        p50, p95, add, peak_search = in_process(path)
        decay, _, peak_decay = measured(["decay", "--now", "2040-01-01", "--db", path])
        decay_again, _, _ = measured(["decay", "--now", "2040-01-01", "--db", path])
        row = ["%9d %9.0f %7.1f %7.1f %7.2f %7.2f %7.2f" % (count, rate, p50, p95, add, decay, decay_again)]
        peaks = [peak, peak_search, peak_decay]
        sync = ["sync", "--level", "all", "--db", path, "--vault", vault]
        first, _, peak_first = measured(sync)
        again, _, peak_again = measured(sync)
        peaks += [peak_first, peak_again]
        row.append("%8.2f %8.2f %8.0f %7.0f" % (first, again, max(peaks), os.path.getsize(path) / (1 << 20)))
        print(" ".join(row), flush=True)
        subprocess.run(["rm", "-rf", str(vault), str(path)])


if __name__ == "__main__":
    wanted = [int(a) for a in sys.argv[1:]] or [1_000, 10_000, 100_000]
    with tempfile.TemporaryDirectory() as name:
        start_up(Path(name))
        sizes(Path(name), wanted)
