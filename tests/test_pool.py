"""POOL: events, sessions, the spool; locked, damaged, killed and crowded pools for real."""
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

import memory_tiered as m

NOON = 1772366400.0  # 2026-03-01 12:00
HERE = os.path.dirname(m.__file__)


def event(key="k1", session="claude:s1", event_type="observation", at=NOON, **fields):
    row = {"agent": session.split(":")[0], "project_path": "/src/shop", "tool_name": "Bash",
           "host_id": session.split(":")[1].split("/")[0],
           "content_summary": "[Bash] make %s → 构建完成" % key,
           "content_json": json.dumps({"output": "built " + key})}
    return m.NeutralEvent(session_id=session, event_type=event_type, at=at, event_key=key,
                          **{**row, **fields})


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "state" / "agent-memory-events.db")


@pytest.fixture
def pool(path):
    opened = m.Pool(path)
    yield opened
    opened.close()


def files(path, part):
    return [name for name in os.listdir(os.path.dirname(path)) if part in name
            and not name.endswith(("-wal", "-shm"))]


# -- the schema

def test_published_columns_and_modes(pool, path):
    have = {row[1]: tuple(row[2:]) for row in pool.database.rows("PRAGMA table_info(agent_events)")}
    assert have["content_json"] == ("TEXT", 1, "'{}'", 0) and have["id"] == ("INTEGER", 0, None, 1)
    assert {"content_summary", "content_json"} <= pool.database.columns("agent_events_fts")
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
    for table, record in (("agent_sessions", m.SessionRecord), ("agent_events", m.EventRecord),
                          ("agent_summaries", m.SummaryRecord)):
        assert set(record._fields) == pool.database.columns(table)


def test_older_pool_is_taken_over(path):
    os.makedirs(os.path.dirname(path))
    old = sqlite3.connect(path)
    for statement in m.POOL_TABLES:
        old.execute(statement)
    old.execute("CREATE VIRTUAL TABLE agent_events_fts USING fts5(content_summary, content_json)")
    old.execute(
        "INSERT INTO agent_sessions VALUES ('claude:old', 'claude', '/p', '2026-01-01 00:00:00', NULL, 'old', '旧会话')")
    old.execute(
        "INSERT INTO agent_events (session_id, agent, event_type, created_at, content_summary)"
                " VALUES ('claude:old', 'claude', 'prompt', '2026-01-01 00:00:00', '数据库用 PostgreSQL')")
    old.commit()
    old.close()
    pool = m.Pool(path)
    pool.events.index_tail()
    assert [e.content_summary for e in pool.events.recent()] == ["数据库用 PostgreSQL"]
    assert [doc for doc, _, _ in m.rank(pool.events.index, "数据库")] == [1]
    assert pool.events.counts() == {("claude", "prompt", "raw"): 1}
    assert [s.id for s in pool.sessions.due(NOON)] == ["claude:old"]
    pool.close()


# -- events and sessions

def test_two_deliveries_are_one_row(pool):
    assert pool.record(event("a")) and not pool.record(event("a")) and pool.record(event("b"))
    assert [e.event_key for e in pool.events.recent()] == ["b", "a"]
    assert pool.sessions.get("claude:s1").last_event_id == pool.events.recent()[0].id


def test_session_life(pool):
    pool.record(event("start", event_type="", phase="start"))
    pool.record(event("p", event_type="prompt", at=NOON + 10, title="修复登录"))
    pool.record(event("p2", event_type="prompt", at=NOON + 20, title="another"))
    pool.record(event("end", event_type="", phase="end", at=NOON + 30))
    session = pool.sessions.get("claude:s1")
    assert (session.title, session.started_at,
            session.ended_at) == ("修复登录", "2026-03-01 12:00:00", "2026-03-01 12:00:30")
    assert (session.source_session_id, session.project_path) == ("s1", "/src/shop")
    pool.record(event("late", at=NOON + 30))  # delivered late: still ended
    assert pool.sessions.get("claude:s1").ended_at == "2026-03-01 12:00:30"
    pool.record(event("again", at=NOON + 3600))
    assert pool.sessions.get("claude:s1").ended_at is None
    assert pool.sessions.find("s1").id == "claude:s1" and pool.sessions.find("nope") is None


@pytest.mark.parametrize("event_after, idle, due", [
    ({"phase": "end", "event_type": ""}, 0, True), ({"enqueue": True, "event_type": ""}, 0, True),
    ({"event_type": "prompt"}, 60, False), ({"event_type": "prompt"}, 1801, True)])
def test_due_sessions(pool, event_after, idle, due):
    pool.record(event("a"))
    pool.record(event("b", at=NOON + 1, **event_after))
    assert [s.id for s in pool.sessions.due(NOON + 1 + idle)] == ["claude:s1"] * due


def test_summaries_resume_where_the_last_one_ended(pool):
    pool.record_all([event("a"),
                     event("sub", "claude:s1/x", is_subagent=True, parent_id="claude:s1"),
                     event("end", event_type="", phase="end")])
    [session] = pool.sessions.due(NOON)
    read = pool.events.of(session.id, session.summarised_to)
    assert [e.event_key for e in read] == ["a", "sub"]
    pool.sessions.mark_summarised(session.id, read[-1].id)
    assert pool.sessions.due(NOON + 9999) == []
    pool.record(event("later", at=NOON + 100))
    assert pool.sessions.due(NOON + 200) == []
    [session] = pool.sessions.due(NOON + 9999)
    assert [e.event_key for e in pool.events.of(session.id, session.summarised_to)] == ["later"]
    assert [s.id for s in pool.sessions.branches("claude:s1")] == ["claude:s1/x"]
    assert [s.id for s in pool.sessions.list()] == ["claude:s1"]
    assert len(pool.sessions.list(branches=True)) == 2


def test_conditions_and_states(pool):
    pool.record_all([event("a"), event("b", "codex:s2", project_path="/src/blog"),
                     event("c", "claude:s1/sub", parent_id="claude:s1", at=NOON + 60)])
    ids = {e.event_key: e.id for e in pool.events.recent()}
    pool.events.set_state([ids["a"]], "promoted")
    for conditions, expected in (({"agent": "codex"}, "b"), ({"session": "s1"}, "ca"),
                                 ({"session": "claude:s1"}, "a"),
                                 ({"project": "/src/blog"}, "b"), ({"state": "promoted"}, "a"),
                                 ({"since": "2026-03-01 12:00:30"}, "c")):
        assert "".join(e.event_key
                       for e in pool.events.recent(**conditions)) == expected, conditions
        pool.events.index_tail()
        assert pool.events.accept(ids.values(), **conditions) == {ids[key] for key in expected}
    assert pool.events.counts() == {("claude", "observation", "promoted"): 1,
                                    ("claude", "observation", "raw"): 1,
                                    ("codex", "observation", "raw"): 1}


def test_what_was_written_a_second_ago_is_found(memory):
    memory.pool.record(event("a", content_summary="[Bash] deploy → 数据库迁移完成"))
    assert [e.event_key for e, _ in memory.events("数据库迁移")] == ["a"]
    rival = m.Pool(memory.places.pool)
    rival.record(event("b", "codex:s2",
                       content_json='{"output": "the nightly migration of orders"}'))
    rival.close()
    m.spool_event(memory.places.pool, event("c", "codex:s3", content_summary="nightly report"))
    assert {e.event_key for e, _ in memory.events("nightly")} == {"b", "c"}
    assert [e.event_key for e, _ in memory.events("nightly", session="s2")] == ["b"]
    assert memory.events("nightly", agent="claude") == []


def test_events_beyond_the_batch_are_found_by_scanning(pool):
    pool.record_all(event("k%d" % n) for n in range(30))
    assert pool.events.index_tail(10) == 10
    assert [e.event_key for e in pool.events.unindexed("BUILT k29")] == ["k29"]
    assert pool.events.unindexed("make k7 built") == []  # the index has that one
    while pool.events.index_tail(10):
        pass
    assert pool.events.unindexed("built") == [] and pool.events.index.counts()[0] == 30


def test_prune_removes_only_old_raw_events(pool):
    pool.record_all([event("old"), event("kept"), event("new", at=NOON + 40 * 86400)])
    ids = {e.event_key: e.id for e in pool.events.recent()}
    pool.events.set_state([ids["kept"]], "candidate")
    pool.events.index_tail()
    assert pool.events.prune(NOON + 86400, dry_run=True) == 1 and len(pool.events.recent()) == 3
    assert pool.events.prune(NOON + 86400) == 1 and pool.events.prune(NOON + 86400) == 0
    assert {e.event_key for e in pool.events.iterate()} == {"kept", "new"}
    assert pool.events.index.counts()[0] == 2


def test_summaries_injections_drops(pool):
    pool.record(event("a"))
    number = pool.summaries.add(pool.sessions.get("claude:s1"), "修复登录", "", ["a.py"], ["b.py"],
                                NOON)
    pool.summaries.set_status(number, "promoted")
    assert pool.summaries.list(status="pending") == []
    assert json.loads(pool.summaries.list(session_id="claude:s1")[0].files_read) == ["a.py"]
    pool.injections.add("claude:s1", [("uid1", "L1:1", 0.5, 80, 30), ("uid2", "L2:4", 0.7, 40, 15)],
                        NOON)
    assert pool.injections.seen("claude:s1") == {"uid1", "uid2"}
    assert pool.injections.seen("x") == set()
    pool.record(event("compact", event_type="", phase="compact"))
    assert pool.injections.seen("claude:s1") == set()
    assert pool.injections.totals()["items"] == 2 and pool.injections.totals()["chars"] == 120
    pool.drop("too_short")
    pool.drop("too_short")
    assert pool.drops() == {"too_short": 2} and pool.counts(NOON)["dropped_too_short"] == 2


# -- the spool

def test_spooled_events_are_folded_once(pool, path):
    for key in "abc":
        m.spool_event(path, event(key))
    m.spool_event(path, event("a"))  # spooled twice
    pool.record(event("b"))          # and written as well
    directory = m.spool_dir(path)
    assert {os.stat(os.path.join(directory, n)).st_mode & 0o777
            for n in os.listdir(directory)} == {0o600}
    assert pool.catch_up() == 4 and os.listdir(directory) == []
    assert sorted(e.event_key for e in pool.events.recent()) == ["a", "b", "c"]


def test_unreadable_spool_file_is_kept_and_stops_nothing(pool, path):
    m.spool_event(path, event("a"))
    wrong = json.dumps({**event("b")._asdict(), "content_summary": None}).encode()
    for name, data in (("1.json", b"{"), ("2.json", b'{"no": 1}'), ("3.json", b"\xff\xfe"),
                       ("4.json", wrong), (".half", b"{")):
        with open(os.path.join(m.spool_dir(path), name), "wb") as file:
            file.write(data)
    assert pool.catch_up() == 1 and [e.event_key for e in pool.events.recent()] == ["a"]
    assert sorted(os.listdir(m.spool_dir(path))) == [".half", "1.bad", "2.bad", "3.bad", "4.bad"]
    assert len([x for x in m.read_log(os.path.join(os.path.dirname(path), m.LOG_NAME))
                if "a damaged spooled file was set aside" in x]) == 4


def test_locked_pool_answers_within_its_patience(pool, path):
    pool.record(event("a"))
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    hook = m.Pool(path, m.HOOK_BUSY_S, for_hook=True)
    started = time.monotonic()
    with pytest.raises(m.StoreError) as caught:
        hook.record(event("b"))
    assert caught.value.code == "busy" and time.monotonic() - started < 1.5
    assert [e.event_key for e in hook.events.recent()] == ["a"]  # reading goes on
    m.spool_event(path, event("b"))
    assert hook.catch_up() == 0 and len(m.spooled(path)) == 1
    holder.execute("ROLLBACK")
    holder.close()
    assert hook.catch_up() == 1 and len(hook.events.recent()) == 2
    hook.close()


def test_directory_in_its_place(path):
    os.makedirs(path)
    with pytest.raises(m.StoreError) as caught:
        m.Pool(path)
    assert caught.value.code == "is_directory"
    m.spool_event(path, event("a"))
    os.rmdir(path)
    pool = m.Pool(path)
    assert [e.event_key for e in pool.events.recent()] == ["a"]
    pool.close()


WRITER = """
import sys, json
sys.path.insert(0, sys.argv[1])
import memory_tiered as m
pool = m.Pool(sys.argv[2], 5.0, for_hook=True)
n = 0
while True:
    n += 1
    key = "w%d" % n
    pool.record(m.NeutralEvent("claude:w", "claude", "error", 1772366400.0 + n, key, content_summary="x" * 3000))
    print(key, flush=True)
"""


def test_kill_loses_nothing_that_was_acknowledged(path):
    acknowledged = []
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITER, HERE, path],
                                   stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 0.4
        keys = []
        while time.monotonic() < deadline or len(keys) < 5:
            keys.append(process.stdout.readline().strip())
        process.send_signal(signal.SIGKILL)
        keys += process.stdout.read().split()
        process.wait()
        acknowledged = keys if len(keys) > len(acknowledged) else acknowledged
    pool = m.Pool(path)
    stored = [e.event_key for e in pool.events.iterate()]
    assert set(acknowledged) <= set(stored) and len(stored) == len(set(stored))
    assert pool.database.value("PRAGMA integrity_check") == "ok"
    pool.close()


# -- damage

def damage(path, kind):
    if kind == "text":
        with open(path, "w") as file:
            file.write("hello, not a database\n" * 300)
    elif kind == "empty":
        open(path, "wb").close()
    elif kind == "half":
        os.truncate(path, os.path.getsize(path) // 2)
    elif kind == "header":
        with open(path, "r+b") as file:
            file.write(os.urandom(100))
    elif kind == "schema":
        with open(path, "r+b") as file:
            file.seek(100)
            file.write(os.urandom(400))
    elif kind == "column":
        with open(path, "rb") as file:
            data = file.read()
        with open(path, "wb") as file:
            file.write(data.replace(b"content_summary TEXT NOT NULL",
                                    b"content_sumXary TEXT NOT NULL"))
    elif kind == "pages":
        with open(path, "r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * (os.path.getsize(path) - 4096))
    for tail in ("-wal", "-shm"):
        if os.path.exists(path + tail):
            os.remove(path + tail)


@pytest.mark.parametrize("kind", ["text", "half", "header", "schema", "column", "pages", "empty"])
def test_damaged_pool_is_set_aside_and_made_anew(path, kind):
    pool = m.Pool(path)
    pool.record_all(event("k%d" % n, content_summary="y" * 2000) for n in range(50))
    pool.close()
    damage(path, kind)
    with open(path, "rb") as file:
        bytes_then = file.read(64)
    pool = m.Pool(path, 0.3, for_hook=True)
    assert pool.record(event("new"))
    assert "new" in [e.event_key for e in pool.events.recent()]
    if kind != "empty":
        [kept] = files(path, ".damaged-")
        with open(os.path.join(os.path.dirname(path), kept), "rb") as file:
            assert file.read(64) == bytes_then
        [line] = m.read_log(os.path.join(os.path.dirname(path), m.LOG_NAME))
        assert line.endswith("a damaged pool was set aside as %s" % os.path.join(
            os.path.dirname(path), kept))
    assert files(path, ".aside") == []
    pool.close()


def test_damage_while_open_is_mended_too(path):
    pool, reader = m.Pool(path), m.Pool(path)
    pool.record_all(event("k%d" % n, content_summary="y" * 2000) for n in range(50))
    pool.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damage(path, "pages")
    pool.close()
    assert isinstance(reader.events.recent(), list)
    again = m.Pool(path)
    assert again.record(event("new")) and len(files(path, ".damaged-")) <= 1
    assert [e.event_key for e in again.events.recent()][:1] == ["new"]
    again.close()
    reader.catch_up()  # follows the path, not the file that was set aside
    assert [e.event_key for e in reader.events.recent()][:1] == ["new"]
    reader.close()


def test_a_healthy_rival_is_left_alone(path):
    pool = m.Pool(path)
    identity = m.file_identity(path)
    pool.close()
    assert m.set_aside(path, (0, 0)) and m.file_identity(path) == identity
    assert m.set_aside(path, identity) and not os.path.exists(path)


def test_lock_of_a_dead_process_is_broken(path):
    m.Pool(path).close()
    with open(path + ".aside", "w"):
        pass
    os.utime(path + ".aside", (1, 1))
    identity = m.file_identity(path)
    assert not m.set_aside(path, identity)   # removes the lock ...
    assert m.set_aside(path, identity)       # ... so that the next one can


RACER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import memory_tiered as m
while time.time() < float(sys.argv[4]):
    time.sleep(0.001)
event = m.NeutralEvent("claude:r", "claude", "error", 1772366400.0, sys.argv[3], content_summary="boom")
try:
    pool = m.Pool(sys.argv[2], 0.3, for_hook=True)
    pool.record(event)
except m.StoreError as error:
    m.spool_event(sys.argv[2], event)
"""


def test_32_processes_set_a_damaged_pool_aside_once(path):
    m.Pool(path).close()
    damage(path, "text")
    start = str(time.time() + 4)
    processes = [subprocess.Popen([sys.executable, "-I", "-S", "-c", RACER, HERE, path, "r%d" % n,
                                   start], stderr=subprocess.PIPE)
                 for n in range(32)]
    errors = [p.communicate()[1] for p in processes]
    assert not any(errors), errors
    pool = m.Pool(path)
    assert sorted(e.event_key
                  for e in pool.events.iterate()) == sorted("r%d" % n for n in range(32))
    assert len(files(path, ".damaged-")) == 1 and m.spooled(path) == []
    assert pool.database.value("PRAGMA integrity_check") == "ok"
    pool.close()


def test_damaged_index_costs_no_event(path):
    pool = m.Pool(path)
    pool.record(event("a"))
    pool.events.index_tail()
    pool.database.execute("UPDATE agent_events_fts_data SET block = x'00ff00ff00ff'")
    pool.record(event("b"))
    pool.events.index_tail()
    assert [e.event_key for e in pool.events.recent()] == ["b", "a"]
    assert files(path, ".damaged-") == []
    assert pool.events.index_tail() == 2
    assert [doc for doc, _, _ in m.rank(pool.events.index, "构建完成")] == [1, 2]
    pool.close()


def test_read_only_pool_still_reads(path):
    pool = m.Pool(path)
    pool.record(event("a"))
    pool.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    pool.close()
    os.chmod(path, 0o400)
    os.chmod(os.path.dirname(path), 0o500)
    try:
        reader = m.Pool(path)
        assert [e.event_key for e in reader.events.recent()] == ["a"]
        reader.close()
    finally:
        os.chmod(os.path.dirname(path), 0o700)
