"""Words and tokens: what a document and a question have in common."""
import pytest

import memory_tiered as m


def shared(question, text):
    """The tokens of a question that a text holds, the lexicon's among them."""
    asked = m.analyse_question(question)
    return ({**asked.asked, **asked.added}).keys() & m.token_set(text)


@pytest.mark.parametrize("text, tokens", [
    ("", []),
    ("！？ 😀 -- \\", []),
    ("记", ["记"]),
    ("记忆库", ["记忆", "忆库", "库"]),
    ("記憶體", ["记忆", "忆体", "体"]),
    ("１２月", ["12", "月"]),
    ("用 RabbitMQ 队列", ["用", "rabbitmq", "rabbit", "mq", "队列", "列"]),
    ("C++ and C#, F#", ["c++", "and", "c#", "f#"]),
    ("don't", ["don"]),
    ("Café Müller", ["cafe", "muller"]),
    ("-O2", ["o2", "o", "2"]),
    ("routes.ts", ["rout", "ts"]),
    ("ひらがな", ["ひら", "らが", "がな", "な"]),
    ("\ud800 ok", ["ok"]),
])
def test_document_tokens(text, tokens):
    assert m.document_tokens(text) == tokens


@pytest.mark.parametrize("one, other", [
    ("getUserProfile", "get_user_profile"), ("HTTPServer", "http_server"),
    ("userProfile", "get_user_profile"),
    ("checkbox", "CheckBoxes"), ("caches", "caching"), ("資料庫遷移", "资料库迁移"), ("ＡＰＩ", "api"),
])
def test_spellings_meet(one, other):
    assert m.token_set(one) & m.token_set(other)


@pytest.mark.parametrize("word, stem", [
    ("caresses", "caress"), ("ponies", "poni"), ("cats", "cat"), ("feed", "feed"),
    ("agreed", "agre"), ("plastered", "plaster"),
    ("motoring", "motor"), ("conflated", "conflat"), ("hopping", "hop"), ("falling", "fall"),
    ("filing", "file"), ("happy", "happi"),
    ("relational", "relat"), ("digitizer", "digit"), ("operator", "oper"), ("hopefulness", "hope"),
    ("triplicate", "triplic"),
    ("electrical", "electr"), ("revival", "reviv"), ("adoption", "adopt"), ("controll", "control"),
    ("rate", "rate"), ("is", "is"), ("utf8", "utf8"), ("记忆", "记忆"),
])
def test_stems_are_those_of_the_published_algorithm(word, stem):
    assert m.stem(word) == stem


@pytest.mark.parametrize("question, asked", [
    ("what did we decide about the cache", ["decid", "cach"]),
    ("what is it", ["what", "is", "it"]),
    ("我们为什么用消息队列", ["用消", "消息", "息队", "队列"]),
    ("怎么修复 API 鉴权", ["修复", "api", "鉴权"]),
    ("using it", ["us"]),
])
def test_function_words_are_left_out_unless_nothing_else_is_there(question, asked):
    assert list(m.analyse_question(question).asked) == asked


def test_one_character_is_asked_alone():
    assert m.analyse_question("猫").single == ["猫"]
    assert m.analyse_question("我的猫在哪").single == ["猫"]
    assert m.analyse_question("我的花猫").single == []


def test_names_weigh_more_in_a_chinese_question():
    weights = m.analyse_question("修复 getUser 报错").asked
    assert weights["user"] > weights["修复"] > 0


@pytest.mark.parametrize("question, text", [
    ("数据库迁移", "database migration"), ("how do we deploy", "部署到预发环境"),
    ("超时重试", "retry after a timeout"), ("unit test", "单元测试"), ("the pull request", "合并请求"),
])
def test_the_lexicon_leads_to_the_other_language(question, text):
    assert shared(question, text)


def test_lexicon_is_well_formed():
    chinese, english = m.lexicon()
    assert len(chinese) > 500
    assert all(len(term) >= 2 or term in "锁树列行" for term in chinese)
    assert all(meanings and meanings.isascii() and meanings == meanings.lower()
               for meanings in chinese.values())
    assert len(m.squeeze(m.LEXICON).split(" | ")) == len(chinese), "a term stands twice"


def test_character_table_is_one_to_one():
    table = m.traditional_to_simplified()
    assert len(table) > 2500
    assert all(len(value) == 1 and ord(value) != key for key, value in table.items())


@pytest.mark.parametrize("text, tokens", [
    ("on may 8, 2023", {"@m05", "@d05-08", "@y2023"}), ("it may fail", set()), ("in may", {"@m05"}),
    ("8 may", {"@m05", "@d05-08"}),
    ("3月1日", {"@m03", "@d03-01"}), ("2024年12月", {"@y2024", "@m12"}),
    ("2024-02-30", {"@y2024", "@m02", "@d02-30"}),
    ("13月", set()), ("sept. 3rd", {"@m09", "@d09-03"}), ("port 20240 is open", set()),
    ("march", {"@m03"}),
])
def test_dates_of_a_question(text, tokens):
    assert set(m.date_tokens(text)) == tokens


def test_dates_meet_the_time_of_a_document():
    assert set(m.date_tokens("8 may 2023")) == set(m.time_tokens("2023-05-08 10:00:00"))
    assert m.time_tokens(None) == m.time_tokens("yesterday") == []


def test_a_long_question_is_bounded():
    words = " ".join("word%d" % n for n in range(100_000))
    asked = m.analyse_question(words + " the question itself")
    assert len(asked.asked) <= m.QUESTION_TOKENS
    assert len(m.analyse_question("a" * 1_000_000).asked) == 2  # of the head and of the tail


def test_of_a_long_question_what_is_repeated_stays():
    filler = " ".join("filler%s" % chr(97 + n % 26) * (n // 26 + 1) for n in range(200))
    asked = m.analyse_question(filler + " zebra zebra zebra")
    assert "zebra" in asked.asked


@pytest.mark.parametrize("a, b, value", [
    ("", "", 0.0), ("red", "", 0.0), ("red green", "green red", 1.0),
    ("red green", "green blue", 1 / 3), ("记忆", "記憶", 1.0),
])
def test_overlap(a, b, value):
    assert m.overlap(a, b) == pytest.approx(value)


@pytest.mark.parametrize("a, b, distance", [
    ("abc", "abc", 0), ("abcd", "acbd", 1), ("abcd", "abd", 1), ("abcd", "abxd", 1),
    ("abcdef", "uvwxyz", 3),
])
def test_edit_distance(a, b, distance):
    assert m.edit_distance(a, b, 2) == distance


@pytest.mark.parametrize("text, chinese", [("把 RabbitMQ 改成 10", True),
                                           ("rename 订单 in the API now", False), ("", False),
                                           ("123", False)])
def test_language_of_a_mixed_text(text, chinese):
    assert m.is_chinese(text) is chinese
