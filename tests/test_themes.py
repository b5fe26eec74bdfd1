"""What is proposed to the person: themes, insights, near-duplicates, conflicts."""
import collections
import time

import pytest

import memory_tiered as m
from test_distill import memory

CONFIG = m.Config()
QUEUE = ("订单服务的 RabbitMQ 消费者 prefetch 设为 10，太大会把内存撑爆。", "RabbitMQ 死信队列接到 order.dlx，重试三次后进入死信。",
         "根因是 RabbitMQ 消费者没有手动 ack，重连后消息重复投递。")
POSTGRES = ("Postgres connection pool max is 20 per pod.",
            "Slow orders query fixed by an index on orders.user_id in Postgres.",
            "Postgres vacuum was off on the orders table; bloat slowed every query.")
OTHER = ("登录页改用 Vue 3 的组合式 API。", "周报每周五下午发，三段：完成、计划、风险。",
         "Feature flags live in Unleash; never hard-code them.",
         "小程序的埋点统一走 tracker.send。", "The mobile app crashes on Android 14.")
Past = collections.namedtuple("Past", "kind uids status")


def numbered(*texts, **fields):
    return [memory(n, text, **fields) for n, text in enumerate(texts, 1)]


def kinds(found):
    return sorted(candidate.kind for candidate in found)


def test_themes_are_found_and_explained():
    found = m.find_themes(numbered(*QUEUE, *POSTGRES, *OTHER)[::-1], CONFIG)
    assert [c.uids for c in found] == [("m00000000001", "m00000000002", "m00000000003"),
                                       ("m00000000004", "m00000000005", "m00000000006")]
    assert found[0].kind == "theme" and found[0].level == 2
    assert found[0].reason == "3 条摘要都谈到 RabbitMQ、消费者 · 3 summaries share RabbitMQ, 消费者"
    assert "手动 ack" in found[0].text and len(found[0].title) <= m.TITLE_CHARS


def test_themes_stay_within_a_project_and_a_user():
    mixed = numbered(*QUEUE)
    assert m.find_themes([mixed[0]._replace(project="/other"), *mixed[1:]], CONFIG) == []
    assert m.find_themes([mixed[0]._replace(user_id="ann"), *mixed[1:]], CONFIG) == []


def test_promoted_ones_and_copies_make_no_theme():
    mixed = numbered(*QUEUE)
    assert m.find_themes([mixed[0]._replace(promoted_to="x"), *mixed[1:]], CONFIG) == []
    assert m.find_themes(numbered(QUEUE[0], QUEUE[0] + "！", QUEUE[0].replace("把", "")),
                         CONFIG) == []
    assert len(m.find_themes(mixed[:2], m.Config({"theme.l1": 2}))) == 1


def test_insights_need_several_sessions():
    known = [memory(n, text, 2, project="/p%d" % n) for n, text in enumerate(QUEUE, 1)]
    found = m.find_themes(known, CONFIG)
    assert [(c.kind, c.level) for c in found] == [("insight", 3)]
    assert m.find_themes([record._replace(session_id="same") for record in known], CONFIG) == []
    assert m.find_themes([record._replace(level=3) for record in known], CONFIG) == []


@pytest.mark.parametrize("old, new", [
    ("前端构建工具是 webpack 5，配置在 build 目录。", "前端构建工具不再用 webpack，换成 vite。"),
    ("We deploy with Jenkins to staging first.",
     "We no longer deploy with Jenkins to staging; switched to GitHub Actions."),
    ("接口超时时间是 30 秒，网关统一设置。", "接口超时时间是 60 秒，网关统一设置。"),
])
def test_what_is_taken_back_is_a_conflict(old, new):
    found = m.find_candidates(numbered(old, *OTHER, new), CONFIG)
    assert kinds(found) == ["conflict"] and found[0].uids == ("m00000000001", "m00000000007")
    assert found[0].level is None
    assert kinds(m.find_candidates(numbered(new, *OTHER, old), CONFIG)) in ([], ["conflict"])


def test_near_duplicates_are_proposed():
    found = m.find_candidates(numbered("Redis 缓存键统一加前缀 shop:，过期时间默认 10 分钟。", *OTHER,
                                       "缓存键统一加前缀 shop:，Redis 过期时间默认 10 分钟。"), CONFIG)
    assert kinds(found) == ["duplicate"] and "100%" in found[0].reason and " · " in found[0].reason
    assert m.find_candidates(numbered(*OTHER), CONFIG) == []


def test_a_decided_candidate_returns_only_when_it_grew():
    mixed = numbered(*QUEUE, "RabbitMQ 消费者数量按订单量扩容。")
    three = m.find_candidates(mixed[:3], CONFIG)
    refused = [Past("theme", list(three[0].uids), "rejected")]
    assert m.find_candidates(mixed[:3], CONFIG, refused) == []
    assert m.find_candidates(mixed[:3], CONFIG)[0].key == three[0].key
    grown = m.find_candidates(mixed, CONFIG, refused)
    assert kinds(grown) == ["theme"] and len(grown[0].uids) == 4 and grown[0].key != three[0].key
    assert m.find_candidates(mixed, CONFIG, [refused[0]._replace(status="pending")]) == []


def test_candidates_are_limited_and_only_of_active_memories():
    many = [memory(n % 28 + 1, "机器 %d 的磁盘阵列型号写在机房登记表里" % (n // 2))._replace(id=n, uid="m%011d" % n)
            for n in range(90)]
    assert len(m.find_candidates(many, CONFIG, limit=5)) <= 10
    assert m.find_candidates([r._replace(status="archived") for r in numbered(*QUEUE)],
                             CONFIG) == []


def test_cost_grows_with_the_number_of_memories():
    def cost(count):
        texts = ["记忆 %d：模块 %d 的接口 %d 已迁移到 service-%d" % (n, n % 97, n % 89, n % 83)
                 for n in range(count)]
        group = [memory(n % 28 + 1, text)._replace(id=n, uid="m%011d" % n) for n,
                 text in enumerate(texts)]
        before = time.process_time()
        m.find_candidates(group, CONFIG)
        return time.process_time() - before

    cost(50)
    assert cost(2000) < 40 * max(cost(250), 0.02)  # eight times as many; the square would be 64


def test_shared_terms_are_whole_phrases():
    texts = ["金融科技精英论坛在北京", "参加金融科技精英论坛", "金融科技精英论坛持续七天"]
    assert m.shared_terms(texts, 2) == ["金融科技精英论坛"]
