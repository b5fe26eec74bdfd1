"""The full-text index on real SQLite: kept in step, fast at any size, never in the way when it is damaged."""
import random

import pytest

import memory_tiered as m

TEXTS = {4: "首次使用记忆系统，体验极佳", 8: "订单服务改为事件驱动，消息队列选 RabbitMQ",
         12: "C++ compile flags -O2 and -std=c++20", 16: "the cat sat on the mat"}


@pytest.fixture
def database(tmp_path):
    opened = m.Database(str(tmp_path / "index.db"), [lambda db: m.create_index(db, "memory")])
    yield opened
    opened.close()


@pytest.fixture
def index(database):
    made = m.Index(database, "memory")
    made.put_many((doc, text, "s%d" % doc, None, "2026-03-01 10:00:00", ("level:1",))
                  for doc, text in TEXTS.items())
    return made


def found(index, question, facets=()):
    return [doc for doc, _, _ in m.rank(index, question, facets=facets)]


def statements(database, run):
    """The SQL statements that a call runs."""
    seen = []
    database.connection.set_trace_callback(seen.append)
    run()
    database.connection.set_trace_callback(None)
    return [s for s in seen if not s.startswith("--")]


def test_put_find_replace_remove(index):
    assert found(index, "记忆") == [4] and found(index, "c++") == [12]
    index.put(4, "完全不同的内容 zebra")
    assert found(index, "记忆") == [] and found(index, "zebra") == [4]
    index.remove(4)
    index.remove(999)
    assert found(index, "zebra") == [] and index.check() == ""


def test_counters_move_with_the_rows(index):
    rnd = random.Random(1)
    for _ in range(200):
        doc = 4 * rnd.randrange(1, 20)
        index.remove(doc) if rnd.random() < 0.4 else index.put(doc, rnd.choice(list(TEXTS.values()))
                                                               + " x" * rnd.randrange(5))
    rows = index.database.rows("SELECT count(*), sum(length), sum(east_asian) FROM memory_docs")[0]
    assert index.database.row("SELECT * FROM memory_totals") == rows
    assert index.check() == ""


def test_adding_costs_the_same_at_any_size(index, database):
    before = statements(database, lambda: index.put(20, "one more zebra"))
    index.put_many((n * 4 + 1, "filler text number %d" % n, None, None, None, ())
                   for n in range(100, 3000))
    after = statements(database, lambda: index.put(24, "one more zebra"))
    assert len(before) == len(after) and not any("count(" in s or "sum(" in s for s in after)


def test_a_failed_put_leaves_nothing(index, database):
    def documents():
        yield (100, "zebra", None, None, None, ())
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        index.put_many(documents())
    assert found(index, "zebra") == [] and index.counts()[0] == len(TEXTS) and index.check() == ""


@pytest.mark.parametrize("facet", ["project:/home/Me/My Work", "project:it's \"q\" %",
                                   "project:项目 甲", "project:", "project:a\ud800b"])
def test_facets_are_exact(index, facet):
    index.put(40, "zebra", facets=(facet, "status:active"))
    index.put(44, "zebra", facets=(facet.swapcase() + "x", "status:active"))
    assert found(index, "zebra", (facet,)) == [40]
    assert found(index, "zebra", (facet, "status:archived")) == []
    assert sorted(found(index, "zebra",
                        ((facet, facet.swapcase() + "x"), "status:active"))) == [40, 44]


def test_a_rare_facet_is_found_among_many_documents(index):
    index.put_many((n * 4, "zebra report %d" % n, None, None, None,
                    ("project:big", "status:active")) for n in range(100, 5000))
    index.put(2, "an old zebra report", facets=("project:small", "status:active"))
    assert found(index, "zebra report", ("project:small", "status:active")) == [2]
    assert len(found(index, "zebra report", ("status:active",))) == 10


def test_words_in_nearly_all_documents_stay_bounded(index, monkeypatch):
    monkeypatch.setattr(m, "POSTINGS", 50)
    index.put_many((n * 4, "alpha beta gamma number%d" % n, None, None, None, ())
                   for n in range(100, 900))
    index.put(4000, "alpha beta delta")
    counts = index.document_counts(["alpha", "beta"], index.counts()[0])
    assert len(index.ranking({"alpha": 1.0, "beta": 1.0}, counts)) <= 50
    assert found(index, "alpha beta delta")[0] == 4000


def test_two_columns_under_a_given_name(tmp_path):
    columns = ("content_summary", "content_json")
    database = m.Database(str(tmp_path / "pool.db"),
                          [lambda db: m.create_index(db, "events", "agent_events_fts", columns)])
    index = m.Index(database, "events", "agent_events_fts", columns)
    index.put(1, ("tests failed", "assert in test_cache"), facets=("agent:claude",))
    index.put(2, "only a summary")
    assert found(index, "cache") == [1] and found(index, "summary") == [2]
    assert found(index, "failed", ("agent:claude",)) == [1]
    match = "SELECT rowid FROM agent_events_fts WHERE agent_events_fts MATCH ?"
    assert database.rows(match, ("content_summary: fail",)) == [(1,)]
    assert database.rows(match, ("content_json: fail",)) == []
    index.remove(1)
    assert found(index, "cache") == [] and index.check() == ""


DAMAGE = ["DELETE FROM memory_fts_data", "DROP TABLE memory_fts_config",
          "DROP TABLE memory_fts_data", "DELETE FROM memory_fts_idx",
          "UPDATE memory_fts_data SET block = x'00ff00ff' WHERE id > 1",
          "UPDATE memory_fts_data SET block = zeroblob(3)"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_never_fatal_and_rebuild_heals(index, database, damage):
    database.execute(damage)
    database.close()
    again = m.Index(database, "memory")
    again.put(60, "a zebra after the damage")
    assert found(again, "zebra") == [60]
    assert found(again, "cat mat") == [16]
    again.remove(60)
    again.check()
    again.rebuild()
    assert again.damage() == "" and again.check() == ""
    assert found(again, "cat mat") == [16] and found(again, "zebra") == []
    again.put(64, "zebra again")
    assert found(again, "zebra") == [64]


@pytest.mark.parametrize("question", ["记忆", "RabbitMQ", "-O2", "cat", "猫", "量子引力", "记"])
def test_without_full_text_the_answers_are_the_same(index, question):
    expected = found(index, question)
    index.database.execute("INSERT INTO memory_meta VALUES (?, 'gone')",
                           (index.full_text.damage_key,))
    assert found(index, question) == expected


def test_sqlite_without_fts5(tmp_path, monkeypatch):
    execute = m.Database.execute

    def without_fts5(self, sql, values=()):
        if "USING fts5(" in sql:
            raise m.engine_error(self.path, m.sqlite3.OperationalError("no such module: fts5"))
        return execute(self, sql, values)

    monkeypatch.setattr(m.Database, "execute", without_fts5)
    database = m.Database(str(tmp_path / "plain.db"), [lambda db: m.create_index(db, "memory")])
    index = m.Index(database, "memory")
    index.put_many((doc, text, None, None, None, ("level:1",)) for doc, text in TEXTS.items())
    assert "fts5" in index.damage()
    assert found(index, "消息队列") == [8] and found(index, "cat", ("level:1",)) == [16]
    assert found(index, "量子") == []


def test_rebuild_from_new_documents(index):
    assert index.rebuild([(8, "only this zebra", None, None, None, ())]) == 1
    assert found(index, "zebra") == [8] and found(index, "cat") == [] and index.counts()[0] == 1
    assert index.check() == ""


def test_neighbours_in_a_session(index):
    index.put_many((100 + 4 * n, "turn %d" % n, "talk", None, None, ()) for n in range(6))
    assert index.around([("talk", 108)]) == [(108, 104, 1), (108, 112, 1), (108, 100, 2),
                                             (108, 116, 2)]
    assert index.around([("nowhere", 108)]) == index.around([]) == []


def test_counts_of_frequent_words_are_remembered_and_renewed(index, database, monkeypatch):
    monkeypatch.setattr(m, "FREQUENT", 10)
    index.put_many((n * 4, "common", None, None, None, ()) for n in range(100, 200))
    assert index.document_counts(["common"], index.counts()[0]) == {"common": 100}
    seen = statements(database, lambda: index.document_counts(["common"], index.counts()[0]))
    assert not any("'common'" in s for s in seen)
    index.put_many((n * 4, "common", None, None, None, ()) for n in range(200, 300))
    assert index.document_counts(["common"], index.counts()[0]) == {"common": 200}
