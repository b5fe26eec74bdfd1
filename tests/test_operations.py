"""Import, export, backup, the timetable, health and repair."""
import json
import os
import sqlite3
from pathlib import Path

import pytest
from conftest import NOON

import memory_tiered as m

RECORDS = [
    {"id": "d1", "text": "周三和产品经理对齐了支付流程", "session": "s1", "time": "2023-05-08T13:56:00",
     "speaker": "小王"},
    {"id": "d2", "text": "支付网关超时设为 3 秒", "importance": 0.9, "tags": ["支付"], "project": "shop"},
    {"id": "d3", "text": "支付网关超时设为 3 秒", "session": ""}]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows),
                    encoding="utf-8")
    return str(path)


def test_records_are_stored_verbatim_and_idempotent_by_id(memory, tmp_path):
    path = write_jsonl(tmp_path / "r.jsonl", RECORDS)
    assert m.import_records(memory, path,
                            NOON)["created"] == 3  # d3 says what d2 says: never merged by text
    assert m.import_records(memory, path, NOON)["unchanged"] == 3
    first = memory.store.memories.by_external(["d1"])["d1"]
    assert (first.agent, first.session_id, first.created_at) == ("小王", "s1", "2023-05-08 13:56:00")
    RECORDS_2 = [{**RECORDS[0], "text": "周四又对齐了一次支付流程"}]
    assert m.import_records(memory, write_jsonl(tmp_path / "r2.jsonl", RECORDS_2),
                            NOON)["updated"] == 1
    assert memory.history(first.uid)[-1]["before"]["text"].startswith("周三")


@pytest.mark.parametrize("line", ["不是 JSON", "[1]", '{"id": 1}', '{"text": 5}', "[" * 100_000])
def test_a_bad_record_names_its_line(memory, tmp_path, line):
    path = tmp_path / "r.jsonl"
    path.write_text('{"text": "好的一行，足够长"}\n%s\n' % line, encoding="utf-8")
    with pytest.raises(m.UsageError) as caught:
        m.import_records(memory, str(path), NOON)
    assert "2" in str(caught.value) and caught.value.code == "bad_record" and memory.list() == []


def test_a_markdown_folder_comes_in_once(memory, tmp_path):
    notes = tmp_path / "笔记"
    (notes / "子目录").mkdir(parents=True)
    (notes / ".obsidian").mkdir()
    (notes / ".obsidian" / "x.md").write_text("隐藏", encoding="utf-8")
    (notes / "部署.md").write_text(
        "---\ntags:\n  - 运维\ncreated: 2025-01-02\nimportance: 0.7\n---\n# 部署手册\n\n先灰度再全量\n",
        encoding="utf-8")
    (notes / "子目录" / "空.md").write_text("---\na: 1\n---\n", encoding="utf-8")
    (notes / "子目录" / "乱码.md").write_bytes("会议纪要\n".encode() + b"\xff\xfe")
    (notes / "长.md").write_text("段落\n\n" * 40_000, encoding="utf-8")
    (notes / "国标.md").write_bytes("# 标题\n\n旧编码的笔记\n".encode("gb18030"))
    (notes / "自己的.md").write_text("---\nid: memory-index\ntype: index\n---\n首页\n", encoding="utf-8")
    if hasattr(os, "mkfifo"):
        os.mkfifo(notes / "管道.md")  # would be read for ever
    counts = m.import_markdown(memory, str(notes), NOON)
    assert counts["created"] == 4 and m.import_markdown(memory, str(notes), NOON)["unchanged"] == 4
    note = memory.store.memories.by_external(["markdown:部署.md"])["markdown:部署.md"]
    assert (note.title, note.tags, note.importance,
            note.created_at) == ("部署手册", ("运维",), 0.7, "2025-01-02 00:00:00")
    (notes / "部署.md").write_text("# 部署手册\n\n改为蓝绿发布", encoding="utf-8")
    assert m.import_markdown(memory, str(notes), NOON)["updated"] == 1


def test_export_and_import_give_the_same_memories(memory, tmp_path):
    first = memory.add(1, "连接池上限设为 20", session_id="a", importance=0.9, tags=["db"],
                       key_points=["20"])[0]
    memory.add(2, "数据库连接要设上限", category="数据库", sources=[1])
    memory.add(1, "被收起的一条记忆", session_id="b")
    memory.forget(["L1:2"])
    memory.get([first.uid], now=NOON + 3600)
    lines = list(m.export_lines(memory, False, False, NOON + 3600))
    path = write_jsonl(tmp_path / "e.jsonl", lines)
    copy = m.Memory(store=str(tmp_path / "copy.db"), now=NOON + 3600)
    assert m.import_export(copy, path, NOON + 3600)["created"] == 3
    again = list(m.export_lines(copy, False, False, NOON + 3600))
    for one, two in zip(lines, again):
        assert {k: v for k, v in one.items() if k not in ("updated_at", "decay_score")} == \
            {k: v for k, v in two.items() if k not in ("updated_at", "decay_score")}
        assert one["decay_score"] == pytest.approx(two["decay_score"], abs=1e-6)
    assert m.import_export(copy, path, NOON)["unchanged"] == 3


def exported(tmp_path, memory, **changes):
    lines = list(m.export_lines(memory, False, False, NOON))
    return write_jsonl(tmp_path / "e.jsonl", [*lines[:-1], {**lines[-1], **changes}])


@pytest.mark.parametrize("changes", [
    {"uid": "../../etc/pas"}, {"uid": "AAAAAAAAAAAA"}, {"uid": 7}, {"uid": None}, {"level": 4},
    {"level": "1"}, {"status": "gone"}, {"type": "neue"}, {"sensitivity": "x"}, {"text": ""},
    {"importance": 7}, {"decay_score": "nan"}, {"superseded_by": "../x"}, {"promoted_to": 5},
    {"access_count": -1}, {"revision": 1 << 80}, {"created_at": "昨天"}, {"tags": [[1]]},
    {"text": 5}])
def test_a_line_that_export_never_wrote_is_named_and_nothing_comes_in(memory, tmp_path, changes):
    for text in ("第一条导出的记忆", "第二条导出的记忆"):
        memory.add(1, text, session_id="s")
    path = exported(tmp_path, memory, **changes)
    copy = m.Memory(store=str(tmp_path / "copy.db"), now=NOON)
    with pytest.raises(m.UsageError) as caught:
        m.import_export(copy, path, NOON)
    assert "line 2" in str(caught.value) and copy.list() == []


def test_export_and_import_with_a_user(memory, tmp_path):
    mine, other = m.Memory(user="小明", now=NOON), m.Memory(user="小红", now=NOON)
    for opened in (memory, mine, other):
        opened.add(1, "各人有各人的记忆", session_id="s")
    lines = list(m.export_lines(mine, False, True, NOON))
    assert [x["kind"] for x in lines] == ["memory", "journal"] and lines[0]["user_id"] == "小明"
    path = write_jsonl(tmp_path / "e.jsonl", lines)
    copy = m.Memory(store=str(tmp_path / "copy.db"), user="小刚", now=NOON)
    assert m.import_export(copy, path, NOON)["created"] == 1
    assert [r.user_id for r in copy.list()] == ["小刚"]


def test_an_id_may_be_nought(memory, tmp_path):
    path = write_jsonl(tmp_path / "r.jsonl", [{"id": 0, "text": "编号从零开始的记录"}])
    assert m.import_records(memory, path, NOON)["created"] == 1
    assert m.import_records(memory, path, NOON)["unchanged"] == 1


def test_two_backups_in_one_second_are_both_there(memory):
    memory.add(1, "先备份的内容", session_id="s")
    first = m.backup(memory, None, NOON)
    memory.add(1, "后备份的内容", session_id="s")
    second = m.backup(memory, None, NOON)
    assert not set(first) & set(second) and all(map(os.path.exists, first + second))
    with sqlite3.connect(first[0]) as con:
        assert con.execute("SELECT count(*) FROM memory_l1").fetchone() == (1,)


def test_backup_is_a_whole_database_while_others_write(memory):
    memory.add(1, "备份里应有这一条", session_id="s")
    memory.store.database.execute("BEGIN IMMEDIATE")
    files = m.backup(memory, None, NOON)
    memory.store.database.execute("ROLLBACK")
    with sqlite3.connect(files[0]) as con:
        assert con.execute("SELECT summary FROM memory_l1").fetchall() == [("备份里应有这一条",)]


# -- cron


@pytest.mark.parametrize("crontab", ["", "0 5 * * * backup\n", "MAILTO=我\n\n# 注释 100%\n@daily x",
                                     "a\n\n\n"])
def test_the_cron_block_goes_in_and_out_to_the_byte(crontab):
    block = m.cron_lines("prog")
    inside = m.with_cron_block(crontab, block)
    assert block in inside and inside.startswith(crontab) and inside.endswith(m.CRON_CLOSE + "\n")
    assert m.with_cron_block(inside, block) == inside
    assert m.with_cron_block(inside, None) == crontab
    later = inside + "9 9 * * * added later\n"
    assert "added later" in m.with_cron_block(later, None)
    assert m.CRON_OPEN not in m.with_cron_block(later, None)
    assert m.with_cron_block(later, m.cron_lines("new")).count(m.CRON_OPEN) == 1


def test_the_file_in_cron_is_what_cron_show_prints():
    file = Path(m.__file__).parent / "cron" / "memory-tiered.crontab"
    assert file.read_text(encoding="utf-8") == m.cron_portable()


@pytest.mark.parametrize("python, quoted", [
    ("/opt/my python/bin/python3", "'/opt/my python/bin/python3' "),
    ("/opt/100%/python3", "/opt/100\\%/python3 "),
    ("/opt/a'b/python3", "'/opt/a'\"'\"'b/python3' ")])
def test_a_crontab_names_any_interpreter(memory, monkeypatch, python, quoted):
    monkeypatch.setattr(m.sys, "executable", python)
    line = m.cron_program(memory.places)
    assert line.replace("'/opt/100\\%/python3'", "/opt/100\\%/python3").startswith(quoted)


FAKE_CRONTAB = """#!/bin/sh
f="$HOME/crontab.txt"
case "$1" in
  -l) [ -f "$f" ] && cat "$f" || { echo "no crontab for you" >&2; exit 1; };;
  -r) rm "$f";;
  -) cat > "$f";;
esac
"""


@pytest.mark.skipif(os.name != "posix", reason="a shell stands in for crontab")
def test_cron_install_pins_the_interpreter_and_is_reversible(cli, home):
    bin_dir = home / "bin"
    bin_dir.mkdir()
    (bin_dir / "crontab").write_text(FAKE_CRONTAB)
    (bin_dir / "crontab").chmod(0o755)
    env = {"PATH": "%s:%s" % (bin_dir, cli.env["PATH"])}
    table = home / "crontab.txt"
    table.write_text("0 5 * * * mine", encoding="utf-8")
    cli("--db", home / "有 空格%" / "s.db", "cron", "install", env=env)
    text = table.read_text(encoding="utf-8")
    assert text.startswith("0 5 * * * mine\n") and text.count("memory_tiered.py") == 6
    assert "\\%" in text
    assert cli.json("cron", "install", "--db", home / "有 空格%" / "s.db", env=env)["changed"] is False
    cli("cron", "remove", env=env)
    assert table.read_text(encoding="utf-8") == "0 5 * * * mine"
    table.unlink()
    cli("cron", "install", env=env)
    cli("cron", "remove", env=env)
    assert not table.exists()


def test_without_crontab_the_lines_are_printed(cli, home):
    done = cli("cron", "install", env={"PATH": str(home)}, code=1)
    assert "decay" in done.stdout and "crontab" in done.stdout


# -- health


def test_a_damaged_index_is_found_and_rebuilt(memory, run):
    run("init")
    memory.add(1, "索引坏了也要能查到", session_id="s")
    memory.store.database.execute("UPDATE memory_fts_data SET block = zeroblob(20)")
    memory.close()
    code, out, _ = run("search-all", "--keyword", "索引", "--no-touch")
    assert code == 0 and "索引坏了" in out
    assert run("doctor")[0] == 1
    assert run("doctor", "--repair")[0] == 0
    assert run("doctor")[0] == 0, run("doctor")
    assert "索引坏了" in run("search-all", "--keyword", "索引")[1]


def test_a_damaged_store_is_left_alone_and_salvaged(memory, run):
    for number in range(300):
        memory.add(1, "第 %d 条：%s" % (number, "内容" * 60), session_id="s")
    memory.close()
    path = Path(memory.places.db)
    with sqlite3.connect(path) as con:
        con.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        root = con.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'memory_journal'").fetchone()[0]
        size = con.execute("PRAGMA page_size").fetchone()[0]
    con.close()
    data = bytearray(path.read_bytes())
    leaf = data.index("第 200 条".encode())
    data[leaf - leaf % size:leaf - leaf % size + 60] = bytes(60)
    data[(root - 1) * size:(root - 1) * size + 8] = bytes(8)
    path.write_bytes(data)
    code, _, err = run("export")
    assert code == 3 and str(path) in err and path.read_bytes() == bytes(data)
    code, out, err = run("doctor", "--repair")
    assert code == 0 and path.read_bytes() == bytes(data), (out, err)
    saved = next(p for p in path.parent.iterdir() if ".repaired-" in p.name
                 and not p.name.endswith(("-wal", "-shm")))
    with sqlite3.connect(saved) as con:
        assert 200 < con.execute("SELECT count(*) FROM memory_l1").fetchone()[0] < 300


# -- doctor


def test_doctor_makes_nothing_and_tells_what_is_missing(run, home):
    code, out, _ = run("doctor")
    assert code == 1 and "init" in out and not (home / ".hermes").exists()
    run("init")
    assert run("doctor")[0] == 0


def test_doctor_tells_of_agents_errors_and_pools_set_aside(run, home, cli):
    db = home / "别处/s.db"
    cli("install", "codex", "--db", db)
    cli("init", "--db", db)
    facts = json.loads(run("doctor", "--db", db, "--json")[1])["facts"]
    assert facts["agent.codex"]["value"][
        "current"] and "agent.openclaw" not in facts  # a shared skill alone
    assert json.loads(run("doctor", "--json")[1])["facts"]["agent.codex"]["value"]["current"]
    pool = home / ".hermes/state/agent-memory-events.db"
    m.write_log(str(pool.parent / "memory-tiered.log"), "hook codex Stop: OSError at line 1: full",
                NOON)
    (pool.parent / (pool.name + ".damaged-20260301")).write_text("x")
    facts = json.loads(run("doctor", "--json", "--now", "2026-03-01T13:00:00Z")[1])["facts"]
    assert facts["agent.codex"]["value"]["hook_error_rate"] == 1.0
    assert facts["damaged_pools"]["value"] == [pool.name + ".damaged-20260301"]


# -- databases of other programs

PUBLISHED = """CREATE TABLE memory_l1 (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL,
    summary TEXT NOT NULL, key_points TEXT, importance REAL DEFAULT 0.5, access_count INTEGER DEFAULT 0,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    decay_score REAL DEFAULT 1.0);
CREATE TABLE memory_l2 (id INTEGER PRIMARY KEY AUTOINCREMENT, category TEXT NOT NULL,
    knowledge TEXT NOT NULL, source_ids TEXT, tags TEXT, importance REAL DEFAULT 0.5,
    access_count INTEGER DEFAULT 0, created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, decay_score REAL DEFAULT 1.0);"""


def test_odd_values_of_an_older_program_are_mended_and_travel(tmp_path):
    path = str(tmp_path / "old.db")
    with sqlite3.connect(path) as con:
        con.executescript(PUBLISHED)
        con.executemany(
            "INSERT INTO memory_l1 (session_id, summary, importance, access_count, created_at, decay_score)"
                        " VALUES ('s', ?, ?, ?, ?, ?)", [
                            ("带 Z 的时间", 5.0, -1, "2025-01-01T08:00:00+08:00", 2.0),
                            ("胡写的时间", "高", "多", "昨天", "快")])
        con.execute(
            "INSERT INTO memory_l2 (category, knowledge, source_ids, tags) VALUES ('杂', '老知识', '1,2', 'a，b')")
    old = m.Memory(store=path, now=NOON)
    first, second = (r for r in old.list(levels=(1,), sort="id"))
    assert (first.importance, first.access_count, first.decay_base) == (1.0, 0, 1.0)
    assert first.created_at == "2025-01-01 00:00:00" and second.created_at == m.utc_text(NOON)
    knowledge = old.list(levels=(2,))[0]
    assert knowledge.sources == (1, 2) and knowledge.tags == ("a", "b")
    lines = write_jsonl(tmp_path / "e.jsonl", m.export_lines(old, False, False, NOON))
    assert m.import_export(m.Memory(store=str(tmp_path / "n.db"), now=NOON), lines,
                           NOON)["created"] == 3


@pytest.mark.parametrize("table", ["memory_notes (x)", "memory_l1 (foo)", "memory_journal (a, b)"])
def test_a_foreign_table_of_our_name_is_left_alone_and_named(tmp_path, table):
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as con:
        con.execute("CREATE TABLE " + table)
    con.close()
    before = path.read_bytes()
    with pytest.raises(m.StoreError) as caught:
        m.Memory(store=str(path), now=NOON).list()
    assert caught.value.code == "name_taken" and table.split()[0] in str(caught.value)
    assert path.read_bytes() == before


def test_a_store_of_which_nothing_can_be_read_is_no_success(run, home):
    path = home / "s.db"
    path.write_text("一份文本\n" * 500, encoding="utf-8")
    code, out, err = run("--db", path, "doctor", "--repair")
    assert code == 3 and not out and str(path) in err


def test_a_candidate_is_shown_whole_before_it_is_approved(run, memory):
    for text in ("超时设为 3 秒", "超时改为 5 秒，不再是 3 秒"):
        memory.add(1, text, session_id="s")
    uids = [r.uid for r in memory.list(sort="id")]
    memory.store.reviews.propose("k", "theme", 2, "旧题目", "超时统一为 5 秒", "两条都谈到超时", uids, NOON)
    out = run("review")[1]
    assert "超时统一为 5 秒" in out and "L1:1" in out and "L1:2" in out
    run("review", "edit", "1", "--text", "网关超时统一为 5 秒")
    run("review", "approve", "1")
    made = memory.get(["L2:1"], touch=False)[0]
    assert made.text == "网关超时统一为 5 秒" and made.title == "网关超时统一为 5 秒"


def test_control_characters_do_not_reach_the_terminal(run):
    run("add-l1", "--session-id", "s", "--summary", "颜色\033[31m与标题\033]0;pwn\007")
    for args in (["get", "L1:1"], ["list"], ["export", "--format", "txt"],
                 ["search-all", "--keyword", "颜色"]):
        assert "\033" not in run(*args)[1] and "颜色" in run(*args)[1]


@pytest.mark.parametrize("source", ["claude-transcripts", "codex-sessions"])
def test_a_missing_history_is_no_success(run, source):
    code, out, err = run("import", source, "/没有/这里")
    assert code == 2 and not out and "没有/这里" in err
