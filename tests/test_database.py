"""One SQLite file: creation, versions, and every way it can be broken."""
import os
import sqlite3
import subprocess
import sys
import threading

import pytest

import memory_tiered as m

STEPS = (lambda db: db.execute("CREATE TABLE t (x)"),
         lambda db: db.execute("INSERT INTO t VALUES (1)"))


def test_a_new_file_is_private_complete_and_in_wal_mode(tmp_path):
    path = tmp_path / "新 folder?#%" / "a.db"
    db = m.Database(str(path), STEPS)
    assert db.version() == 2 and db.rows("SELECT x FROM t") == [(1,)]
    assert db.value("PRAGMA journal_mode") == "wal"
    db.close()
    if os.name == "posix":
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert os.stat(path.parent).st_mode & 0o777 == 0o700
    assert os.listdir(path.parent) == ["a.db"]


def test_a_foreign_file_keeps_its_journal_mode_and_user_version(tmp_path):
    path = str(tmp_path / "theirs.db")
    with sqlite3.connect(path) as con:
        con.executescript("CREATE TABLE theirs (x); PRAGMA user_version = 22")
    db = m.Database(path, STEPS)
    assert db.value("PRAGMA journal_mode") == "delete" and db.value("PRAGMA user_version") == 22
    assert db.version() == 2


def text_file(path):
    path.write_text("這不是数据库 · not a database\n" * 100, encoding="utf-8")


def newer(path):
    m.Database(str(path), STEPS + STEPS[1:]).close()


def damaged_schema(path):
    m.Database(str(path), STEPS).close()
    data = bytearray(path.read_bytes())
    data[100:600] = bytes(500)
    path.write_bytes(data)


@pytest.mark.parametrize("prepare, code", [
    (lambda path: path.mkdir(), "is_directory"), (text_file, "damaged"), (newer, "newer_version"),
    (damaged_schema, "damaged")])
def test_what_cannot_be_opened_is_one_error_with_the_path(tmp_path, prepare, code):
    path = tmp_path / "a.db"
    prepare(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(m.StoreError) as caught:
        m.Database(str(path), STEPS)
    assert caught.value.code == code and str(path) in str(caught.value)
    assert before is None or path.read_bytes() == before


def test_a_missing_file_is_not_made_unasked(tmp_path):
    with pytest.raises(m.StoreError) as caught:
        m.Database(str(tmp_path / "no.db"), STEPS, create=False)
    assert caught.value.code == "missing" and os.listdir(tmp_path) == ["home"]


def test_a_failed_migration_leaves_the_version_before_it(tmp_path):
    path = str(tmp_path / "a.db")
    m.Database(path, STEPS[:1]).close()

    def broken(db):
        db.execute("INSERT INTO t VALUES (7)")
        raise ValueError("half-way")

    with pytest.raises(ValueError):
        m.Database(path, STEPS[:1] + (broken,))
    db = m.Database(path, STEPS)
    assert db.rows("SELECT x FROM t") == [(1,)]


def test_a_transaction_is_whole_or_nothing_and_nests(tmp_path):
    db = m.Database(str(tmp_path / "a.db"), STEPS)
    with pytest.raises(KeyError), db.write():
        db.execute("INSERT INTO t VALUES (2)")
        with db.write():
            db.execute("INSERT INTO t VALUES (3)")
        raise KeyError
    assert db.rows("SELECT x FROM t") == [(1,)]


def test_programming_errors_stay_loud(tmp_path):
    db = m.Database(str(tmp_path / "a.db"), STEPS)
    for sql in ("SELEC 1", "SELECT nosuch FROM t"):
        with pytest.raises(sqlite3.OperationalError):
            db.execute(sql)


def test_a_lock_held_by_another_is_a_busy_error(tmp_path):
    path = str(tmp_path / "a.db")
    db = m.Database(path, STEPS, busy_s=0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(m.StoreError) as caught, db.write():
        pass
    assert caught.value.code == "busy"
    assert db.rows("SELECT x FROM t") == [(1,)]  # reading goes on


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0
                    and not os.path.exists("/proc/self/mountinfo"), reason="POSIX")
def test_a_read_only_file_is_still_read(tmp_path):
    path = tmp_path / "a.db"
    m.Database(str(path), STEPS).close()
    db = m.Database.__new__(m.Database)  # as on a read-only disk: no lock file can be made
    db.__dict__.update(path=str(path), migrations=STEPS, busy_s=1, read_only=False,
                       _local=threading.local())
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert db.rows("SELECT x FROM t") == [(1,)]
    finally:
        tmp_path.chmod(0o755)


def test_many_processes_create_one_database(tmp_path):
    path = str(tmp_path / "deep" / "a.db")
    code = ("import sys; sys.path.insert(0, %r); import memory_tiered as m\n"
            "db = m.Store(%r, 1.0).database\n"
            "with db.write(): db.execute(\"INSERT INTO memory_meta VALUES (?, 1)\", (sys.argv[1],))"
            % (os.path.dirname(m.__file__), path))
    running = [subprocess.Popen([sys.executable, "-c", code, "p%d" % i], stderr=subprocess.PIPE)
               for i in range(12)]
    assert [(p.communicate()[1], p.returncode) for p in running] == [(b"", 0)] * 12
    db = m.Database(path, m.STORE_MIGRATIONS)
    assert db.value("SELECT count(*) FROM memory_meta WHERE key GLOB 'p*'") == 12
    db.close()
    assert os.listdir(os.path.dirname(path)) == ["a.db"]


def test_threads_have_connections_of_their_own(tmp_path):
    db = m.Database(str(tmp_path / "a.db"), STEPS)
    seen, errors = [], []

    def work():
        try:
            with db.write():
                db.execute("INSERT INTO t VALUES (5)")
            seen.append(id(db.connection))
            db.close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors and db.value("SELECT count(*) FROM t") == 9
