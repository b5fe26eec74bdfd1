"""One note as text: properties, names, links, escaping, and a note written and read back."""
import json
import os
import random
import re
import unicodedata

import pytest

import memory_tiered as m

CORPUS = os.environ.get("VAULT_CORPUS", "")
UID = "m4raqngmx2ab"


def block(*lines):
    return "---\n" + "".join(line + "\n" for line in lines) + "---\n正文\n"


# -- properties: what is read

def shown(value):
    """The name of a case."""
    return str(value)[:40] if isinstance(value, list) else ""


READABLE = [  # lines, data, raw keys
    (["title: 部署手册"], {"title": "部署手册"}, []),
    (["n: 12", "x: -3.5", "e: 2e3", "hex: 0x1A", "oct: 0o17"],
     {"n": 12, "x": -3.5, "e": 2000.0, "hex": 26, "oct": 15}, []),
    (["a: true", "b: FALSE", "c: ~", "d: null", "e:"],
     {"a": True, "b": False, "c": None, "d": None, "e": None}, []),
    (["a: yes", "b: off", "c: 12:30", "d: 1_000"],
     {"a": "yes", "b": "off", "c": "12:30", "d": "1_000"}, []),
    (["day: 2026-03-01", "at: 2026-03-01T08:00:00"],
     {"day": "2026-03-01", "at": "2026-03-01T08:00:00"}, []),
    (["zip: \"00501\"", "v: 1.20"], {"zip": "00501", "v": 1.2}, []),
    (["tags:", "  - 甲", "  - 乙/丙"], {"tags": ["甲", "乙/丙"]}, []),
    (["tags:", "- flush", "- left", "k: 1"], {"tags": ["flush", "left"], "k": 1}, []),
    (["tags: [a, \"b, c\", 'd: e']"], {"tags": ["a", "b, c", "d: e"]}, []),
    (["tags: []", "aliases: [ ]", "t: [x,]"], {"tags": [], "aliases": [], "t": ["x"]}, []),
    (["tags:", "  [", "    one,", "    two", "  ]"], {"tags": ["one", "two"]}, []),
    (["tags:", "  - a", "  # 中间的注释", "  - b # 行尾", "  -"], {"tags": ["a", "b", None]}, []),
    (["tags: #hash"], {"tags": None}, []),
    (["link: \"[[笔记|名字]]\""], {"link": "[[笔记|名字]]"}, []),
    (["up: [[Home]]", "k: 1"], {"k": 1}, ["up"]),
    (["m: {a: 1}", "k: 1"], {"k": 1}, ["m"]),
    (["m:", "  inner: 1", "k: 1"], {"k": 1}, ["m"]),
    (["l:", "  - name: x", "k: 1"], {"k": 1}, ["l"]),
    (["l:", "  - - 1", "k: 1"], {"k": 1}, ["l"]),
    (["a: &anchor 1", "b: *anchor", "c: !tag x", "<<: {}", "k: 1"], {"k": 1},
     ["a", "b", "c", "<<"]),
    (["a: .inf", "b: -.INF", "c: .nan", "k: 1"], {"k": 1}, ["a", "b", "c"]),
    (["t: {{date}}", "k: 1"], {"k": 1}, ["t"]),
    (["t: |2", "    a", "k: 1"], {"k": 1}, ["t"]),
    (["# 开头", "a: 1 # 尾", "", "b: x#y"], {"a": 1, "b": "x#y"}, []),
    (["'it''s': 1", "\"k: v\": 2", "有 空格: 3", "2024: 4"],
     {"it's": 1, "k: v": 2, "有 空格": 3, "2024": 4}, []),
    (["a : 1", "b:\tx"], {"a": 1, "b": "x"}, []),
    (["u: http://a.b:80/c?d#e", "w: C:\\dir\\x"], {"u": "http://a.b:80/c?d#e", "w": "C:\\dir\\x"},
     []),
    (["q: \"a\\tb \\u4e2d \\x41 \\U0001F600 \\\" \\/\""], {"q": "a\tb 中 A 😀 \" /"}, []),
    (["q: 'it''s \"fine\"'"], {"q": "it's \"fine\""}, []),
    (["q: \"one", "  two", "", "  three\""], {"q": "one two\nthree"}, []),
    (["q: \"joined\\", "  \\ up\"", "k: 1"], {"q": "joined up", "k": 1}, []),
    (["q: 'a", "", "", "  b'"], {"q": "a\n\nb"}, []),
    (["p: a long value", "  that goes on", "k: 1"], {"p": "a long value that goes on", "k": 1}, []),
    (["t: |", "  一", "", "    缩进", "  二", "k: 1"], {"t": "一\n\n  缩进\n二\n", "k": 1}, []),
    (["t: |-", "  # 不是注释", "  ---", "k: 1"], {"t": "# 不是注释\n---", "k": 1}, []),
    (["t: |+", "  a", "", "k: 1"], {"t": "a\n\n", "k": 1}, []),
    (["t: >-", "  a", "  b", "", "  c"], {"t": "a b\nc"}, []),
    (["t: >", "  a", "    code", "k: 1"], {"k": 1}, ["t"]),
    (["t: -x", "u: ?y", "v: :z"], {"t": "-x", "u": "?y", "v": ":z"}, []),
    (["t: “弯引号”", "rtl: שלום"], {"t": "“弯引号”", "rtl": "שלום"}, []),
    (["t: a\u00a0b", "n: x\u2028y"], {"t": "a\u00a0b", "n": "x\u2028y"}, []),
    (["t: 时间：下午"], {"t": "时间：下午"}, []),
    (["tp: <% tp.date.now() %>"], {"tp": "<% tp.date.now() %>"}, []),
    (["# only a comment"], {}, []),
    ([], {}, []),
]

BROKEN = [
    ["title: 一: 二"], ["title: end:"], ["标题：全角"], ["t: \"open", "k: 1"], ["t: \"a\" b"], ["t: @me"],
    ["t: `code`"], ["t: %x"],
    ["t: *bold* x"], ["t: - x"], ["a: 1", "a: 2"], ["  a: 1"], ["{\"a\": 1}"],
    ["a: 1", "...", "b: 2"], ["tags:", "\t- a"],
    ["t: a\x01b"], ["p: \"C:\\Users\""], ["t: [a, b"], ["word"], ["t:x"], ["t: a # c", "  more"],
    ["l:", "    - a", "  - b"], ["t: a\rb"],
]


@pytest.mark.parametrize("lines, data, raw", READABLE, ids=shown)
def test_properties_are_read(lines, data, raw):
    found = m.read_properties(block(*lines))
    assert (found.status, found.data, found.raw, found.reason) == ("ok", data, raw, "")
    assert [type(v) for v in found.data.values()] == [type(v) for v in data.values()]


@pytest.mark.parametrize("lines", BROKEN, ids=str)
def test_broken_blocks_are_read_only_with_a_reason(lines):
    found = m.read_properties(block(*lines))
    assert found.status == "read-only" and found.data == {} and " · " in found.reason
    with pytest.raises(m.BrokenBlock):
        m.edit_properties(block(*lines), {"importance": 1})


@pytest.mark.parametrize("text",
                         ["", "# x\n---\na: 1\n---\n", "\n---\na: 1\n---\n", "---\na: 1\n",
                          "----\na: 1\n----\n", "---\\na: 1"])
def test_no_block_is_none(text):
    assert m.read_properties(text) == ("none", {}, [], "") and "".join(m.split_note(text)) == text


@pytest.mark.parametrize("text, parts", [
    ("\ufeff---\na: 1\n---\nb", ("\ufeff", "---\n", "a: 1\n", "---\n", "b")),
    ("---\r\na: 1\r\n---\r\nb\r\n", ("", "---\r\n", "a: 1\r\n", "---\r\n", "b\r\n")),
    ("---  \na: 1\n--- \n", ("", "---  \n", "a: 1\n", "--- \n", "")),
    ("---\n---", ("", "---\n", "", "---", "")),
    ("---\na: 1\n---\nx\n---\ny", ("", "---\n", "a: 1\n", "---\n", "x\n---\ny")),
])
def test_split_is_exact(text, parts):
    assert m.split_note(text) == parts


# -- properties: what is written


@pytest.mark.parametrize("lines, data, raw", READABLE, ids=shown)
def test_an_edit_touches_its_own_key_alone(lines, data, raw):
    text = block(*lines)
    edited = m.edit_properties(text, {"new one": ["甲", "[[x]]"], "importance": 0.5})
    found = m.read_properties(edited)
    assert found.data == {**data, "new one": ["甲", "[[x]]"], "importance": 0.5} and found.raw == raw
    kept = iter(m.split_note(edited)[2].split("\n"))
    assert all(line in kept for line in lines) and edited.endswith("---\n正文\n")
    for key in data:
        found = m.read_properties(m.edit_properties(text, {key: "changed: now"}))
        assert found.data == {**data, key: "changed: now"} and found.raw == raw
        assert key not in m.read_properties(m.edit_properties(text, {key: m.REMOVE})).data


def test_an_edit_keeps_comments_line_ends_and_equal_values():
    text = "---\r\na: 1 # why\r\nb: 1.0\r\n\r\n---\r\nbody\r\n"
    edited = m.edit_properties(text, {"a": 2, "b": 1, "c": "x"})
    assert edited == "---\r\na: 2 # why\r\nb: 1.0\r\nc: x\r\n\r\n---\r\nbody\r\n"
    assert m.edit_properties(text, {"a": True}).count("a: true # why") == 1  # true is not 1


def test_a_raw_key_is_refused():
    with pytest.raises(m.BrokenBlock):
        m.edit_properties(block("up: [[Home]]"), {"up": "x"})


AWKWARD = ["", " lead", "trail ", "- x", "? x", ": x", "a: b", "a:", "a #b", "#b", "[x]", "{x}",
           "&a", "*a", "!t", "|", ">", "'q'", '"q"', "%x", "@x",
           "`x`", "yes", "No", "on", "y", "null", "~", "true", "1", "1.5", "1e5", "0x1", "0123",
           "1_000", "12:30", "2026-03-01", ".5", "---",
           "...", "<<", "=", "a\nb", "a\tb", "\u2028", "\x85", "\ufeffx", "\u202eevil", "中：文",
           "a'b", "C:\\x", "x" * 300, "𠮷", "é", "\x7f"]


@pytest.mark.parametrize("value", AWKWARD, ids=ascii)
def test_text_is_emitted_so_that_it_stays_text(value):
    given = {"k": value, "l": [value, "z"], value or "e": 1}
    text = "---\n%s---\n" % "".join(m.emit_property(*pair) for pair in given.items())
    found = m.read_properties(text)
    assert found.data.get("k") == value and found.data.get("l") == [value, "z"]
    assert (value == "<<" or found.data[value or "e"] == 1)
    assert "\n" not in m.emit_property("k", value)[:-1]


def test_values_look_as_obsidian_writes_them():
    shown = "".join(m.emit_property(k, v) for k, v in [
        ("importance", 0.9), ("count", 3), ("pinned", False), ("created", "2026-03-01T12:00:00"),
        ("note", "2026-03-01"), ("none", None), ("tags", ["记忆/L1", "1"]), ("empty", [])])
    assert shown == ("importance: 0.9\ncount: 3\npinned: false\ncreated: 2026-03-01T12:00:00\n"
                     "note: \"2026-03-01\"\nnone:\n"
                     "tags:\n  - 记忆/L1\n  - \"1\"\nempty: []\n")


# -- names, links, tags

TITLES = [  # title, what the name holds; None: nothing of the title can stay
    ("部署流程", "部署流程"), ("a/b", "a-b"), ("a\\b:c", "a-b-c"), ("问?*\"<>|", "问"),
    ("#tag ^id [[x]]", "tag"), ("100%%", "100"),
    ("全角：？", "全角：？"), ("CON", "CON"), ("nul.txt", "nul-txt"), ("COM¹.a", "COM¹-a"),
    (".hidden", "hidden"), ("..", None), ("../../etc", "etc"),
    ("尾 . ", "尾"), ("", None), ("   ", None), ("\n一\n二\t三", "一 二 三"), ("长" * 200, "长" * 30),
    ("e\u0301" * 90, "é" * 40), ("🎉" * 50, None),
    ("🧠 记忆", "记忆"), ("👩\u200d💻", None), ("1\ufe0f\u20e3 项", "1 项"), ("\u200b零宽\ufeff", "零宽"),
    ("\u202eevil\u202c.exe", "evil.exe"),
    ("a\u00a0\u3000b", "a b"), ("a\x00b\x07", "ab"), ("\ud83d x", "x"),
    ("2026-03-01", "2026-03-01"), ("-rf", "rf"), ("~$x", "x"), ("_p", "p"),
    ("a - - b", "a-b"), ("it's", "it's"), ("v1.2.3", "v1.2.3"), ("السلام", "السلام"),
    ("𠮷野家", "𠮷野家"), ("ㅤ", None), ("STRASSE ß", "STRASSE ß"),
    ("<% tp.x %>", "tp.x"), ("ガイド", "ガイド"), ("x" * 94 + "e\u0301y", "x" * 94), ("。。。", None),
]


@pytest.mark.parametrize("title, holds", TITLES, ids=lambda v: ascii(v)[:30])
def test_names_are_legal_everywhere(title, holds):
    name = m.note_name(title, UID)
    stem = name[:-len("-%s.md" % UID)]
    assert name.endswith("-%s.md" % UID) and len(name.encode()) <= 120
    assert name == unicodedata.normalize("NFC", name)
    assert not re.search(
        "[\\\\/:*?\"<>|#^\\[\\]%`\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ufeff]", name)
    assert stem and stem[0] not in " .-~_" and stem[-1] not in " .-"
    assert not unicodedata.combining(stem[0])
    assert not re.match(r"(?i)(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\.|$)", name)
    assert stem == "记忆" if holds is None else holds in name
    assert m.note_name(unicodedata.normalize("NFD", m.well_formed(title)), UID) == name
    link = m.wikilink(name, title)
    assert link.startswith("[[%s|" % name[:-3])
    assert (link.count("["), link.count("]"), link.count("|")) == (2, 2, 1)
    assert "\n" not in link and m.link_uid(link) == UID and m.link_uid(name[:-3]) == UID


def test_link_uid_of_other_texts_is_none():
    assert [m.link_uid(t) for t in ("[[Home]]", "codex session 91bc", "", "https://x.y/z-a",
                                    "[[a-b|c]]")] == [None] * 5


@pytest.mark.parametrize("given, tag",
                         [("a b", "a-b"), ("#x", "x"), ("C++", "C"), ("2024", "_2024"),
                          ("v1.2", "v1-2"), ("甲/乙", "甲/乙"), ("/a//b/", "a/b"),
                          ("！", "！"), ("!!", ""), ("", ""), ("a\u2014b", "a-b"),
                          ("हिन्दी", "हिन्दी"), ("x\ny", "x-y")])
def test_tags_are_made_valid(given, tag):
    assert m.obsidian_tag(given) == tag and m.obsidian_tag(tag) == tag


# -- escaping

ALIVE = ["<% tp.file.delete() %>", "```dataviewjs\ndv.x\n```", "`$= dv.x`", "`= this.x`",
         "![](http://evil/x.png)", "![a](http://e/x)", "<iframe src=x>",
         "<SCRIPT>", "<img src=x onerror=y>", "[[phantom]]", "![[embed]]", "#tag", "x #标签",
         "%%hidden%%", "a\n---\nb", "text ^block-id",
         "%% memory:auto %%", "%% /memory:auto %%", "<!-- rest", "~~~dataview\nLIST\n~~~",
         "[[[x]]]", "![a][ref]", "^id", "  ---  "]


@pytest.mark.parametrize("text", ALIVE, ids=ascii)
def test_what_is_alive_is_broken_invisibly(text):
    escaped = m.escape(text)
    assert escaped != text and escaped.replace(m.BREAK, "") == text and m.unescape(escaped) == text


@pytest.mark.parametrize("text",
                         ["plain 文字", "C# and a#b and #123", "# 标题\n\n- 项", "a - b",
                          "```sh\nif [[ -f x ]]; then # no\n#include\n---\n```", "List<String>",
                          "a^2", "50% off", "x == y", "arr[0]", "`code`"])
def test_what_is_dead_stays(text):
    assert m.escape(text) == text


@pytest.mark.parametrize("text",
                         ["```js\nlet a", "para\n~~~\n[[x]]", "  ```\ncode", "```\na\n```\n```\nb"])
def test_an_open_code_block_cannot_swallow_the_rest(text):
    escaped = m.escape(text)
    assert m.unescape(escaped) == text
    assert len(re.findall(r"^ {0,3}(?:```|~~~)", escaped, re.M)) % 2 == 0


PIECES = ["<", "%", "[", "]", "!", "#", "`", "```", "~~~", "-", "---", "\n", " ", "^", "id",
          m.BREAK, "dataviewjs", "$=", "iframe", "(", ")", "a", "标",
          "\r", "\t", "1", m.AUTO_OPEN, m.AUTO_CLOSE, "<!--", "\\", "\u2028", "\x85", "\ud800",
          "\0", "``````", "    "]


def test_escape_and_unescape_are_inverse_for_any_text():
    rng = random.Random(7)
    for _ in range(6000):
        text = "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 16)))
        escaped = m.escape(text)
        assert m.unescape(escaped) == text, ascii(text)
        assert "<%" not in escaped and m.AUTO_OPEN not in escaped and m.AUTO_CLOSE not in escaped
        assert "`$=" not in escaped
        assert not re.search(r"<iframe\b|(```|~~~)[ \t]*dataview", escaped), ascii(text)
        outside = re.sub(r"^(`{3,}|~{3,})[^\n]*\n(?s:.*?)^\1[`~]*[ \t]*$", "", escaped, flags=re.M)
        assert not re.search(r"\[\[[^\[\]\n]+\]\]", outside), ascii(text)


def test_escape_is_linear_on_hostile_fences():
    text = "".join("%s\n" % ("~`"[n % 2] * (400 - n % 390 + 3)) for n in range(500)) + "\n" * 20000
    assert m.unescape(m.escape(text)) == text


# -- a whole note


def record(**changes):
    given = dict.fromkeys(m.MemoryRecord._fields)
    given.update(level=1, id=1, uid=UID, type="episode_summary", text="用 pnpm 构建\n第二行",
                 key_points=(), tags=(), importance=0.9, access_count=0, decay_base=1.0,
                 decay_score=0.4, decayed_at="2026-03-01 12:00:00", session_id="s-1", sessions=(),
                 status="active", sensitivity="normal",
                 created_at="2026-03-01 11:00:00", updated_at="2026-03-01 11:30:00", sources=(),
                 revision=1)
    given.update(changes)
    return m.MemoryRecord(**given)


def test_a_note_reads_as_laid_out():
    text = m.render_note(record(level=2, title="构建: 工具", project="/home/u/web shop", agent="codex",
                                tags=("前端", "a b", "记忆/x")),
                         m.NoteLinks(("[[源-mwy3w2vtabcd|源]]",), ("[[果-m5swbbpvabcd|果]]",), "",
                                     "[[新-mhfzdyczabcd|新]]"))
    assert text == """---
id: m4raqngmx2ab
level: L2
type: episode_summary
status: active
importance: 0.9
decay_score: 1.0
decayed_at: 2026-03-01T12:00:00
access_count: 0
created: 2026-03-01T11:00:00
updated: 2026-03-01T11:30:00
agent: codex
project: "/home/u/web shop"
aliases:
  - "构建: 工具"
tags:
  - 记忆/L2
  - 项目/web-shop
  - 前端
  - a-b
sources:
  - "[[源-mwy3w2vtabcd|源]]"
superseded_by: "[[新-mhfzdyczabcd|新]]"
session: s-1
---
# 构建: 工具

用 pnpm 构建
第二行

%% memory:auto %%
## 来源
- 提炼自 [[源-mwy3w2vtabcd|源]]
## 提炼为
- 提炼为 [[果-m5swbbpvabcd|果]]
## 关联
- 被取代 [[新-mhfzdyczabcd|新]]
%% /memory:auto %%

## 我的笔记
"""


def _some(rng, values, most=3):
    return tuple(rng.choice(values) for _ in range(rng.randint(0, most)))


def test_render_and_parse_are_inverse():
    rng = random.Random(11)
    texts = [t for t in AWKWARD + ALIVE + [t for t, _ in TITLES] if m.well_formed(t) == t]
    for _ in range(400):
        text = "\n".join(_some(rng, texts, 4)) or "x"
        title = rng.choice([None, m.squeeze(rng.choice(texts)) or None])
        title = None if title == m.first_line(text) else title
        given = record(
            level=rng.choice(m.LEVELS), text=text, title=title, key_points=_some(rng, texts),
            category=rng.choice([None, *texts]) or None,
            tags=tuple(dict.fromkeys(_some(rng, ["甲", "b/c", "x-y"]))),
            importance=rng.choice([0.0, 0.85, 1.0, 0.3333]), access_count=rng.randint(0, 9),
            project=rng.choice([None, "/a/b", "名字", "C:\\x"]), agent=rng.choice([None, "claude"]),
            session_id=rng.choice([None, *texts]) or None,
            status=rng.choice(m.STATUSES), sensitivity=rng.choice(m.SENSITIVITIES),
            sessions=_some(rng, texts),
            valid_until=rng.choice([None, "2027-01-01 00:00:00"]),
            external_id=rng.choice([None, "7", "x:y"]), accessed_at="2026-03-02 00:00:00",
            sources=("mwy3w2vtabcd",) * rng.randint(0, 1),
            superseded_by=rng.choice([None, "mhfzdyczabcd"]),
            promoted_to=rng.choice([None, "m5swbbpvabcd"]))
        links = m.NoteLinks(tuple("[[源-%s|源]]" % uid for uid in given.sources), (),
                            "果-m5swbbpvabcd" if given.promoted_to else "",
                            "[[新-mhfzdyczabcd|新]]" if given.superseded_by else "")
        note = m.render_note(given, links)
        parsed = m.parse_note(note)
        assert (parsed.status, parsed.whole, parsed.mine) == ("ok", True, "\n## 我的笔记\n"), note
        assert {k: v for k, v in parsed.fields.items() if v != getattr(given, k)} == {}, note
        assert set(m.MemoryRecord._fields) - set(parsed.fields) == {"id", "decay_score", "revision"}
        read = m.parse_note(note.replace("\n", "\r\n")).fields["text"]
        assert read == text.replace("\r\n", "\n") or "\r" in text
        assert m.render_note(given._replace(**parsed.fields), links) == note


def test_a_note_that_a_person_edited_is_read_leniently():
    note = m.render_note(record(title="题"))
    edited = note.replace("# 题\n\n用 pnpm", "# 新题\n用 npm")
    edited = edited.replace("importance: 0.9", "importance: 高")
    edited = edited.replace("created: 2026-03-01T11:00:00", "created: soon")
    edited = edited.replace("tags:\n  - 记忆/L1\n", "tags: 甲,#乙 记忆/L1\n") + "我写的\n"
    parsed = m.parse_note(edited)
    assert parsed.fields["title"] == "新题" and parsed.fields["text"].startswith("用 npm")
    assert parsed.mine.endswith("我写的\n")
    assert parsed.fields["tags"] == ("甲", "乙") and "importance" not in parsed.fields
    assert "created_at" not in parsed.fields


@pytest.mark.parametrize("harm",
                         [(m.AUTO_CLOSE, ""), (m.AUTO_OPEN, ""),
                          (m.AUTO_OPEN, m.AUTO_OPEN + "\n" + m.AUTO_OPEN)])
def test_damaged_markers_leave_the_body_to_the_person(harm):
    parsed = m.parse_note(m.render_note(record()).replace(*harm))
    assert not parsed.whole and "text" not in parsed.fields and "title" not in parsed.fields


@pytest.mark.parametrize("text",
                         ["", "---\n: : bad [\n---\n", "no block", "\x00\xff", m.AUTO_OPEN,
                          "---\nid: [1]\nlevel: {}\ntags: 3\nsources: 1\n---\n"])
def test_parse_never_fails(text):
    m.parse_note(text)


def test_columns_of_another_program_do_not_stop_a_note():
    note = m.render_note(record(importance=None, access_count=None, decay_base=None,
                                decayed_at="soon", created_at=5, tags=(1, None), key_points=(2,),
                                text=7, project="/"))
    assert m.read_properties(note).status == "ok" and "\n# 7\n" in note and "importance" not in note


# -- the whole corpora, where they are at hand

with_corpus = pytest.mark.skipif(not CORPUS,
                                 reason="set VAULT_CORPUS=<folder> to run the whole corpora")


def _rows(name):
    with open(os.path.join(CORPUS, name), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _numbers(value):
    """2000.0 and 2000 are one value to JavaScript, where the corpus comes from."""
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else value


@with_corpus
def test_corpus_of_properties():
    for case in _rows("frontmatter_corpus.jsonl"):
        want, found = case["expect"], m.read_properties(case["text"])
        assert "".join(m.split_note(case["text"])) == case["text"]
        assert found.status.replace("-", "") == want["status"], case["id"]
        data = {k: _numbers(v) for k, v in found.data.items()}
        assert data == {k: _numbers(v) for k, v in want["data"].items()}, case["id"]
        assert sorted(found.raw) == sorted(want["raw"]), case["id"]
        if found.status == "ok":
            changes = {"importance": 0.5, "zz_new": ["甲", "[[x]]"]}
            edited = m.edit_properties(case["text"], changes)
            again = m.read_properties(edited)
            known = {k: _numbers(v) for k, v in again.data.items()}
            assert known == {**data, **changes}, case["id"]
            kept = iter(m.split_note(edited)[2].split("\n"))
            assert all(line in kept for line in m.split_note(case["text"])[2].split("\n")[:-1]
                       if not line.startswith("importance:")), case["id"]
            assert again.raw == found.raw
            assert m.split_note(edited)[4] == m.split_note(case["text"])[4]


@with_corpus
def test_corpus_of_titles():
    names = {}
    for case in _rows("titles_corpus.jsonl"):
        name, want = m.note_name(case["title"], case["id"]), case["expect"]
        test_names_are_legal_everywhere(case["title"], None if want["fallback"] else "")
        assert all(unicodedata.normalize("NFC", part) in name for part in want["contains"]), case
        if want["same_name_as"] is not None:
            assert names[want["same_name_as"]] == name
        else:
            folded = unicodedata.normalize("NFD", name).casefold()
            assert folded not in {unicodedata.normalize("NFD", n).casefold()
                                  for n in names.values()}
        names[case["n"]] = name
