"""The facade: what goes in, what comes out, and that nothing is lost."""
import sqlite3
import threading

import pytest
from conftest import NOON

import memory_tiered as m

HOUR, DAY = 3600, 86400


def add(memory, text, **fields):
    return memory.add(fields.pop("level", 1), text, **{"session_id": "s", **fields})[0]


# -- in


@pytest.mark.parametrize("text, code", [
    ("", "empty_text"), ("  \n\t", "empty_text"), ("\0\0", "empty_text"),
    ("长" * 100_001, "too_long"), ("<private>只有秘密</private>", "empty_text")])
def test_bad_texts_are_refused(memory, text, code):
    with pytest.raises(m.UsageError) as caught:
        add(memory, text)
    assert caught.value.code == code and memory.list() == []


@pytest.mark.parametrize("fields, error", [
    ({"importance": 7}, "bad_importance"), ({"importance": "nan"}, "bad_importance"),
    ({"importance": "很高"}, "bad_importance"),
    ({"type": "neue"}, "bad_type"), ({"sensitivity": "x"}, "bad_sensitivity"),
    ({"valid_until": "明天"}, "bad_time"),
    ({"sources": [99], "level": 2}, "not_found"), ({"supersedes": "L1:99"}, "not_found"),
    ({"supersedes": "胡说"}, "bad_ref")])
def test_bad_fields_are_refused_and_nothing_is_stored(memory, fields, error):
    with pytest.raises(m.TieredError) as caught:
        add(memory, "一条好好的记忆", **fields)
    assert caught.value.code == error and memory.list() == []


@pytest.mark.parametrize("text, kept", [
    ("空\0字节", "空字节"), ("半个\ud83d代理", "半个\ufffd代理"), ("一对\ud83d\ude00代理", "一对😀代理"),
    ("  两端空白 ", "两端空白")])
def test_odd_characters_become_storable(memory, text, kept):
    assert add(memory, text).text == kept


def test_secrets_never_reach_the_disk(memory):
    secret = "hunter2" + "Zq9"
    add(memory, "数据库密码是 %s，别外传" % secret, key_points=["password=" + secret], tags=["ok"])
    memory.close()
    for suffix in ("", "-wal"):
        try:
            data = open(memory.places.db + suffix, "rb").read()
        except FileNotFoundError:
            continue
        assert secret.encode() not in data


def test_the_same_again_refreshes_and_gains_the_session(memory):
    first = add(memory, "队列选 RabbitMQ", session_id="a")
    again, created = memory.add(1, " 队列选 ＲabbitMQ ", session_id="b", now=NOON + DAY)
    assert not created and again.uid == first.uid and again.sessions == ("b",)
    assert again.access_count == 1
    for other in ({"project": "shop"}, {"type": "task_state"}):
        assert memory.add(1, "队列选 RabbitMQ", session_id="a", **other)[1]


def test_agents_have_one_name(memory):
    assert add(memory, "用哪个代理都一样", agent="claude-code").agent == "claude"


# -- decay and access


def test_access_moves_the_anchor_and_lists_do_not(memory):
    record = add(memory, "缓存层换成 Redis")
    memory.list(now=NOON + DAY)
    memory.get([m.ref(record)], touch=False, now=NOON + DAY)
    got = memory.get([m.ref(record)], now=NOON + DAY)[0]
    assert got.access_count == 1 and got.decay_base == pytest.approx(0.99 ** 24 + 0.1)
    assert got.accessed_at == m.utc_text(NOON + DAY) and got.importance == 0.5


def test_a_session_counts_one_access(memory):
    record = add(memory, "同一会话只算一次")
    for session in ("x", "x", "y", None, None):
        memory.get([record.uid], session_id=session)
    assert memory.get([record.uid], touch=False)[0].access_count == 4


@pytest.mark.parametrize("at", [NOON - 400 * DAY, NOON, NOON + 30 * 365 * DAY])
def test_decay_under_any_clock_changes_only_the_cache(memory, at):
    record = add(memory, "时钟乱走也不怕")
    memory.decay(now=at)
    again = memory.get([record.uid], touch=False)[0]
    assert (again.decay_base, again.decayed_at,
            again.revision) == (record.decay_base, record.decayed_at, 1)
    memory.decay(now=NOON + DAY)
    column = memory.store.database.value("SELECT decay_score FROM memory_l1")
    assert column == pytest.approx(0.99 ** 24) and memory.decay(now=NOON + DAY)["updated"] == 0


@pytest.mark.parametrize("kind", list(m.TYPES))
@pytest.mark.parametrize("hours", [-50, 0, 1, 69, 5000])
@pytest.mark.parametrize("rate", [0.5, 0.99, 1.0])
def test_the_formula_in_sql_is_the_one_in_python(memory, kind, hours, rate):
    memory.config.changed["decay.rate"] = rate
    record = add(memory, "两处公式同一结果", type=kind)
    now = NOON + hours * HOUR
    in_sql = memory.store.memories.decay_scores([m.doc_of(1, record.id)], m.Filters(), now, rate)
    assert list(in_sql.values()) == [pytest.approx(m.score_now(record, now, rate))]


def test_a_profile_never_decays(memory):
    record = add(memory, "用户偏好简体中文", type="user_profile")
    memory.decay(now=NOON + 1000 * DAY)
    assert m.memory_json(memory.get([record.uid], touch=False)[0], NOON + 1000 * DAY,
                         memory.config)["decay_score"] == 1.0


def test_the_rate_is_a_setting(memory):
    memory.config.changed["decay.rate"] = 0.9
    record = add(memory, "衰减快一点")
    assert m.memory_json(record, NOON + HOUR, memory.config)["decay_score"] == pytest.approx(0.9)


def test_decay_nudges_but_never_decides(memory):
    old = add(memory, "部署流程：先灰度百分之五，再全量发布", now=NOON - 900 * DAY)
    add(memory, "午饭吃了面条，发布会很长")
    assert memory.search("灰度发布部署流程")[0].record.uid == old.uid


def test_a_dry_run_of_decay_counts_and_changes_nothing(memory):
    add(memory, "一条会淡去的记忆")
    add(memory, "一条不会淡去的记忆", type="user_profile")
    before = [tuple(r) for r in memory.list()]
    told = memory.decay(dry_run=True, now=NOON + 20 * DAY)
    assert (told["updated"], told["cleanup_candidates"]) == (1, 1)
    assert [tuple(r) for r in memory.list()] == before
    assert memory.decay(now=NOON + 20 * DAY) == told


# -- promotion


def use(memory, record, times):
    for _ in range(times):
        memory.get([record.uid])


def test_promotion_happens_once_and_links_both_ways(memory):
    record = add(memory, "连接池上限设为 20，超过后排队等待", importance=0.8, project="shop", tags=["db"])
    use(memory, record, 3)
    assert memory.promote(dry_run=True)["promoted"] == [{"from": "L1:1", "to": None}]
    assert memory.promote()["promoted"] == [{"from": "L1:1", "to": "L2:1"}]
    assert memory.promote()["promoted"] == []
    knowledge = memory.get(["L2:1"], touch=False)[0]
    assert knowledge.sources == (1,) and knowledge.project == "shop" and "db" in knowledge.tags
    assert knowledge.category
    assert memory.get([record.uid], touch=False)[0].promoted_to == knowledge.uid


def test_a_second_memory_on_the_subject_enriches_the_knowledge(memory):
    texts = ("连接池上限设为 20，超过后排队等待", "连接池上限设为 20，超过后会排队等待处理")
    for text in texts:
        use(memory, add(memory, text, importance=0.9), 3)
    memory.promote()
    found = memory.list(levels=(2,))
    assert len(found) == 1 and set(found[0].sources) == {1, 2}


# -- search


def test_filters_and_users(memory):
    add(memory, "共享的部署经验一", project="a", tags=["运维"], agent="codex")
    add(memory, "共享的部署经验二", project="b", type="task_state", now=NOON + DAY)
    for conditions, count in (({}, 2), ({"project": "a"}, 1), ({"tags": ["运维"]}, 1),
                              ({"tags": ["运%"]}, 0), ({"agent": "codex"}, 1),
                              ({"type": "task_state"}, 1), ({"since": m.utc_text(NOON + 60)}, 1),
                              ({"levels": (2,)}, 0)):
        assert len(memory.search("部署经验", touch=False, **conditions)) == count, conditions
        assert len(memory.list(**conditions)) == count, conditions
    other = m.Memory(user="小明", now=NOON)
    assert other.search("部署经验") == [] and other.list() == []
    with pytest.raises(m.NotFoundError):
        other.get(["L1:1"])


def test_a_search_whose_access_cannot_be_written_still_answers(memory):
    add(memory, "锁住也能查到的记忆")
    memory.store.database.connection.execute("PRAGMA busy_timeout = 50")
    holder = sqlite3.connect(memory.places.db, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert memory.search("锁住")[0].record.access_count == 0
    holder.execute("ROLLBACK")


# -- nothing lost


def test_undo_goes_back_step_by_step(memory):
    record = add(memory, "第一版", importance=0.5)
    memory.update(record.uid, text="第二版")
    memory.update(record.uid, importance=0.9)
    memory.forget([record.uid])
    seen = [(r.text, r.importance, r.status) for r in (memory.undo(record.uid) for _ in range(3))]
    assert seen == [("第二版", 0.9, "active"), ("第二版", 0.5, "active"), ("第一版", 0.5, "active")]
    with pytest.raises(m.NotFoundError):
        memory.undo(record.uid)
    assert memory.search("第一版", touch=False)
    assert not memory.search("第二版", touch=False, status="archived")
    assert [h["change"] for h in memory.history(record.uid)] == ["add", "update", "update",
                                                                 "forget", "undo", "undo", "undo"]


def test_an_archived_memory_can_be_changed_and_stays_archived(memory):
    record = add(memory, "收起之后再改的记忆")
    memory.forget([record.uid, m.ref(record), record.uid])
    assert len(memory.history(record.uid)) == 2  # the same one thrice is one change
    assert memory.update(record.uid, text="改过的记忆").status == "archived"
    assert not memory.search("改过的记忆") and memory.search("改过的记忆", status="archived")


def test_replacing_goes_one_way(memory):
    for text in ("第一个说法", "第二种讲法", "第三版结论"):
        add(memory, text)
    memory.supersede("L1:1", "L1:2")
    memory.supersede("L1:2", "L1:3")
    for older, newer, code in (("L1:3", "L1:1", "circle"), ("L1:2", "L1:1", "circle"),
                               ("L1:2", "L1:2", "same_memory")):
        with pytest.raises(m.UsageError) as caught:
            memory.supersede(older, newer)
        assert caught.value.code == code
    memory.restore(["L1:2"])
    memory.supersede("L1:3", "L1:2")
    assert [r.id for r in memory.list()] == [2]


def test_undo_takes_back_a_replacement_and_a_promotion(memory):
    old, new = add(memory, "端口用 8080"), add(memory, "端口改用 9090")
    memory.supersede(old.uid, new.uid)
    back = memory.undo(old.uid)
    assert (back.status, back.superseded_by, back.deprecated_at) == ("active", None, None)
    record = add(memory, "日志保留三十天再清理", importance=0.9)
    use(memory, record, 3)
    assert len(memory.promote()["promoted"]) == 1
    assert memory.undo(record.uid).promoted_to is None
    memory.promote()  # finds its L2 again instead of making another
    assert len(memory.list(levels=(2,))) == 1


def test_restoring_what_is_here_is_no_change(memory):
    record = add(memory, "一直都在的记忆")
    assert memory.restore([record.uid]) == [record] and len(memory.history(record.uid)) == 1


def test_what_a_person_brought_back_is_not_put_away_the_next_day(memory):
    record = add(memory, "沉睡很久的小事", importance=0.1)
    memory.prune(now=NOON + 200 * DAY)
    memory.restore([record.uid], now=NOON + 201 * DAY)
    assert memory.prune(now=NOON + 202 * DAY)["archived"] == []
    assert memory.prune(now=NOON + 292 * DAY)["inactive"] == [m.ref(record)]


def test_links_to_a_purged_memory_do_no_harm(memory):
    source = add(memory, "来源记忆要被销毁", importance=0.9)
    use(memory, source, 3)
    memory.promote()
    add(memory, "旧说法", session_id="t")
    memory.supersede("L1:2", "L2:1")
    knowledge = memory.purge("L2:1")
    shown = m.memory_json(memory.get(["L1:2"])[0], NOON, memory.config)
    assert shown["superseded_by"] == knowledge.uid
    assert memory.search("来源记忆") and memory.history("L1:1") and memory.promote()["promoted"] == []
    add(memory, "由它得出的知识", level=2, sources=[1])
    memory.purge("L1:1")
    assert memory.get(["L2:2"])[0].sources == (1,) and memory.restore(["L1:2"])
    memory.sync()
    assert len(list(m.export_lines(memory, True, True, NOON))) > 2


def test_a_limit_may_be_large(memory):
    for number in range(30):
        add(memory, "关于部署的第 %d 条记忆" % number)
    assert len(memory.search("部署", limit=1_000_000, touch=False)) == 30


def test_supersede_restore_purge(memory):
    old, new = add(memory, "喜欢 Redis"), add(memory, "优先 Postgres", supersedes="L1:1")
    got = memory.get([old.uid], touch=False)[0]
    assert (got.status, got.superseded_by) == ("deprecated", new.uid) and not memory.search("Redis")
    assert memory.search("Redis", status="deprecated", touch=False)
    assert memory.restore([old.uid])[0].superseded_by is None and memory.search("Redis")
    memory.purge(old.uid)
    with pytest.raises(m.NotFoundError):
        memory.get([old.uid])
    assert memory.store.journal.of(old.uid)[0]["change"] == "purge" and not memory.search("Redis")


def test_prune_puts_away_only_what_is_neither_used_nor_important(memory):
    faded, kept = add(memory, "无关紧要的小事", importance=0.2), add(memory, "重要的大事情", importance=0.6)
    task = add(memory, "本周做完迁移", type="task_state", importance=0.9, valid_until="2026-03-05")
    assert memory.prune(now=NOON + 91 * DAY, dry_run=True)["inactive"] == [m.ref(faded)]
    result = memory.prune(now=NOON + 91 * DAY)
    assert result["inactive"] == [m.ref(faded)] and result["archived"] == [m.ref(task)]
    assert memory.prune(now=NOON + 91 * DAY) == {"inactive": [], "archived": [],
                                                 "events_removed": 0}
    assert memory.prune(now=NOON + 181 * DAY)["archived"] == [m.ref(faded)]
    assert memory.get([kept.uid], touch=False)[0].status == "active"


def test_counts_are_kept_without_counting(memory):
    for number in range(5):
        add(memory, "第 %d 条不同的记忆" % number, importance=0.4)
    memory.forget(["L1:1"])
    memory.purge("L1:2")
    counts = memory.store.memories.counts()
    assert counts[1, "active"][0] == 3 and counts[1, "archived"][0] == 1
    assert counts[1, "active"][1] == pytest.approx(1.2)


def test_a_row_of_another_program_is_adopted(memory):
    memory.store.close()
    with sqlite3.connect(memory.places.db) as con:
        con.execute("INSERT INTO memory_l1 (session_id, summary, decay_score, importance,"
                    " created_at) VALUES ('x', '别的程序直接写入的记忆', 0.5, NULL, NULL)")
    again = m.Memory(now=NOON)
    record = again.search("别的程序", touch=False)[0].record
    assert len(record.uid) == 12 and record.decay_base == 0.5 and record.type == "episode_summary"
    assert record.importance == 0.5 and m.render_line(record)  # what it left NULL is filled in


def test_threads_share_one_facade(memory):
    errors = []

    def work(number):
        try:
            for step in range(5):
                add(memory, "线程 %d 写下第 %d 条" % (number, step))
                memory.search("线程")
            memory.close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors and len(memory.list(limit=None)) == 30


# -- review


def test_review_approves_rejects_and_edits(memory):
    for number in range(3):
        add(memory, "第 %d 次谈到订单服务的消息队列 RabbitMQ 配置" % number, session_id="s%d" % number)
    reviews = memory.store.reviews
    uids = [r.uid for r in memory.list()]
    assert reviews.propose("k", "theme", 2, "消息队列", "订单服务用 RabbitMQ", "三条都谈到", uids, NOON)
    assert not reviews.propose("k", "theme", 2, "消息队列", "订单服务用 RabbitMQ", "三条都谈到", uids, NOON)
    memory.edit_review(1, "订单服务的消息队列统一用 RabbitMQ")
    decided = memory.decide(1, True)
    made = memory.get([decided.result_uid], touch=False)[0]
    assert made.level == 2 and "统一" in made.text and len(made.sources) == 3
    assert {r.promoted_to for r in memory.list(levels=(1,))} == {made.uid}
    assert memory.decide(1, True) == decided  # the same decision again changes nothing
    with pytest.raises(m.TieredError):
        memory.decide(1, False)
    with pytest.raises(m.NotFoundError):
        memory.decide(99, True)
