"""The folder of notes: what is written, what is left alone, and what a kill leaves behind."""
import os
import re

import pytest

import memory_tiered as m

NOON = m.utc_seconds("2026-03-01T12:00:00Z")
DAY = 86400.0
ROOT = os.name == "nt" or os.geteuid() == 0  # permission bits do not stop root


@pytest.fixture
def vault(tmp_path):
    return tmp_path / "memory"


@pytest.fixture
def sync(store, vault):
    def call(now=NOON, **settings):
        return m.sync_vault(store, str(vault), now=now, **settings)
    return call


def add(store, text="用 pnpm 构建前端", level=1, now=NOON, **fields):
    return store.memories.insert(level, {"text": text, **fields}, "test", now)


def note_of(vault, record):
    """The one file of a memory."""
    found = [p for p in vault.rglob("*.md") if p.stem.endswith("-" + record.uid)]
    assert len(found) <= 1, found
    return found[0] if found else None


def state(vault):
    return {str(p.relative_to(vault)): (p.read_bytes(), p.lstat().st_mtime_ns)
            for p in vault.rglob("*") if p.is_file() and not p.is_symlink()}


def summary(counts):
    return {name: n for name, n in counts.items() if n}


# -- what is written


def test_each_tier_has_its_folder_and_the_second_run_writes_nothing(store, vault, sync):
    records = [add(store), add(store, level=2, category="工具", sources=(1,)),
               add(store, level=3, sources=(1,))]
    assert summary(sync()) == {"written": 3}
    assert [note_of(vault, r).parent.name for r in records] == ["L1-关键摘要", "L2-结构知识", "L3-核心洞察"]
    shown = sorted(p.name for p in vault.iterdir() if not p.name.startswith("."))
    assert shown == sorted([*m.VAULT_FOLDERS, m.INDEX_PATH, m.BASE_PATH])
    before = state(vault)
    assert summary(sync(now=NOON + 30 * DAY)) == {"unchanged": 3} and state(vault) == before
    assert "importance: 0.5" in note_of(vault, records[0]).read_text("utf-8")
    if os.name == "posix":
        assert {p.stat().st_mode & 0o777 for p in vault.rglob("*")} == {0o600, 0o700}


def test_sources_and_what_came_of_them_are_linked(store, vault, sync):
    one, two = add(store, "一"), add(store, "二")
    knowledge = add(store, "三", level=2, sources=(one.id, two.id, 99))
    newer = add(store, "四", level=2)
    store.memories.change(knowledge, {"status": "deprecated", "superseded_by": newer.uid}, "test",
                          "supersede", NOON)
    store.memories.change(one, {"promoted_to": newer.uid}, "test", "promote", NOON)
    sync()
    text = note_of(vault, knowledge).read_text("utf-8")
    assert text.count("[[一-%s|一]]" % one.uid) == 2 and text.count("[[二-%s|二]]" % two.uid) == 2
    assert "- 被取代 [[四-%s|四]]" % newer.uid in text and "status: deprecated" in text
    assert note_of(vault, knowledge).parent.name == "L2-结构知识"
    made = note_of(vault, one).read_text("utf-8")
    assert "- 提炼为 [[三-%s|三]]\n- 提炼为 [[四-%s|四]]\n" % (knowledge.uid, newer.uid) in made
    assert m.parse_note(made).fields["promoted_to"] == newer.uid
    assert m.parse_note(text).fields["sources"] == (one.uid, two.uid)
    assert summary(sync()) == {"unchanged": 4}


def test_a_link_appears_only_where_there_is_a_note(store, vault, sync):
    source, made = add(store, "源"), add(store, "果", level=2, sources=(1,))
    sync(levels=(1,))
    assert note_of(vault, made) is None
    assert "- 提炼为 果-%s\n" % made.uid in note_of(vault, source).read_text("utf-8")
    assert summary(sync()) == {"written": 2}
    assert "[[果-%s|果]]" % made.uid in note_of(vault, source).read_text("utf-8")
    os.remove(note_of(vault, source))
    assert summary(sync()) == {"missing": 1, "written": 1}
    text = note_of(vault, made).read_text("utf-8")
    assert "[[" not in text and m.parse_note(text).fields["sources"] == (source.uid,)


def test_what_matters_is_written_at_once_and_accesses_once_a_day(store, vault, sync):
    record = add(store)
    sync()
    store.memories.touch([m.doc_of(1, record.id)], NOON + 60, 0.99, 0.1)
    assert summary(sync(now=NOON + 120)) == {"unchanged": 1}
    assert "access_count: 0" in note_of(vault, record).read_text("utf-8")
    assert summary(sync(now=NOON + DAY)) == {"written": 1}
    text = note_of(vault, record).read_text("utf-8")
    assert "access_count: 1" in text and "decayed_at: 2026-03-01T12:01:00" in text
    store.memories.write_decay(NOON + 2 * DAY, 0.99)
    assert summary(sync(now=NOON + 9 * DAY)) == {"unchanged": 1}
    store.memories.change(record, {"importance": 0.9}, "test", "update", NOON + 9 * DAY)
    assert summary(sync(now=NOON + 9 * DAY)) == {"written": 1}
    assert "importance: 0.9\n" in note_of(vault, record).read_text("utf-8")


def test_the_name_stays_and_the_title_changes(store, vault, sync):
    record = add(store, title="旧题")
    other = add(store, level=2, sources=(record.id,))
    sync()
    name = note_of(vault, record).name
    store.memories.change(record, {"title": "新题"}, "test", "update", NOON)
    assert summary(sync()) == {"written": 2} and note_of(vault, record).name == name
    assert "# 新题\n" in note_of(vault, record).read_text("utf-8")
    assert "[[旧题-%s|新题]]" % record.uid in note_of(vault, other).read_text("utf-8")


def test_forgotten_notes_move_to_the_archive_and_back(store, vault, sync):
    record = add(store)
    sync()
    gone = store.memories.change(record, {"status": "archived"}, "test", "forget", NOON)
    assert summary(sync()) == {"moved": 1} and note_of(vault, record).parent.name == "归档"
    assert "status: archived" in note_of(vault, record).read_text("utf-8")
    store.memories.change(gone, {"status": "active"}, "test", "restore", NOON)
    assert summary(sync()) == {"moved": 1} and note_of(vault, record).parent.name == "L1-关键摘要"
    assert summary(sync()) == {"unchanged": 1}


def test_the_note_of_a_purged_memory_goes_unless_it_was_edited(store, vault, sync):
    plain, edited = add(store, "甲"), add(store, "乙")
    sync()
    with note_of(vault, edited).open("a", encoding="utf-8") as file:
        file.write("我的话\n")
    for record in (plain, edited):
        store.memories.remove(record, "test", NOON)
        store.notes.purge(record.uid)
    assert summary(sync()) == {"removed": 1, "edited": 1}
    assert note_of(vault, plain) is None and "我的话" in note_of(vault, edited).read_text("utf-8")
    assert store.notes.base(edited.uid) is None


def test_the_index_changes_only_with_its_content(store, vault, sync):
    add(store, level=3, text="先写测试", importance=0.8)
    add(store, level=2, text="用 ruff")
    sync()
    text = (vault / m.INDEX_PATH).read_text("utf-8")
    assert "| L3 核心洞察 | 1 | 1 |" in text and "|先写测试]]" in text and "|用 ruff]]" in text
    assert "![[记忆总览.base#全部记忆]]" in text
    before = state(vault)
    sync(now=NOON + 40 * DAY)
    assert state(vault) == before
    (vault / m.INDEX_PATH).write_text(text + "我的目录\n", "utf-8")
    add(store, level=2, text="后来的")
    sync()
    assert (vault / m.INDEX_PATH).read_text("utf-8") == text + "我的目录\n"


def test_the_base_is_of_the_subset_that_obsidian_knows():
    top = re.findall(r"^(\w+):", m.BASE_TEMPLATE, re.M)
    assert top == ["filters", "formulas", "properties", "views"] and "\t" not in m.BASE_TEMPLATE
    assert re.findall(r"^  - type: (\w+)\n    name: (\S+)", m.BASE_TEMPLATE, re.M) == [
        ("table", "全部记忆"), ("cards", "核心洞察"), ("table", "将忘"), ("list", "归档")]


def test_dry_run_counts_and_changes_nothing(store, vault, sync):
    add(store)
    assert summary(sync(dry_run=True)) == {"written": 1} and not vault.exists()
    assert store.notes.get([m.INDEX_UID]) == {}
    sync()
    record = add(store, "新")
    before = state(vault)
    assert summary(sync(dry_run=True)) == {"written": 1, "unchanged": 1} and state(vault) == before
    assert note_of(vault, record) is None


# -- what is left alone


def test_an_edited_note_is_left_alone_and_counted(store, vault, sync):
    record = add(store)
    sync()
    path = note_of(vault, record)
    mine = path.read_text("utf-8") + "我的补充\n"
    path.write_text(mine, "utf-8")
    store.memories.change(record, {"status": "archived", "text": "别的"}, "test", "update", NOON)
    assert summary(sync()) == {"edited": 1} == summary(sync()) and path.read_text("utf-8") == mine
    path.write_bytes(store.notes.base(record.uid))  # the person took it back
    assert summary(sync()) == {"moved": 1}


def test_a_touched_note_is_no_edit(store, vault, sync):
    record = add(store)
    sync()
    os.utime(note_of(vault, record), (1, 1))
    assert summary(sync()) == {"unchanged": 1}


def test_a_deleted_note_stays_deleted(store, vault, sync):
    gone, kept = add(store, "甲"), add(store, "乙")
    sync()
    data = note_of(vault, gone).read_bytes()
    path = note_of(vault, gone)
    path.unlink()
    store.memories.change(gone, {"text": "甲改"}, "test", "update", NOON)
    assert summary(sync()) == {"missing": 1, "unchanged": 1} == summary(sync())
    assert note_of(vault, gone) is None
    path.write_bytes(data)  # back from the trash
    assert summary(sync()) == {"written": 1, "unchanged": 1} and "甲改" in path.read_text("utf-8")
    assert note_of(vault, kept)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", b"---\n: : bad [\n---\n", b"mine\n"])
def test_a_strangers_file_in_the_way_is_never_overwritten(store, vault, sync, data):
    record = add(store)
    m.make_vault(str(vault))
    path = vault / "L1-关键摘要" / m.note_name(m.note_title(record), record.uid)
    path.write_bytes(data)
    assert summary(sync()) == {"blocked": 1} == summary(sync()) and path.read_bytes() == data
    path.unlink()
    assert summary(sync()) == {"written": 1}


def test_the_persons_own_files_are_not_touched(store, vault, sync):
    m.make_vault(str(vault))
    own = {"memory_tiered.py": b"print()", "L1-关键摘要/mine.md": b"x", "L1-关键摘要/empty.md": b"",
           ".obsidian": b"{}", "日记.md": b"\xff"}
    for name, data in own.items():
        (vault / name).write_bytes(data)
    add(store)
    sync()
    assert all((vault / name).read_bytes() == data for name, data in own.items())


symlinks = pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")


@symlinks
@pytest.mark.parametrize("folder", m.VAULT_FOLDERS)
def test_a_linked_folder_is_not_followed(store, vault, sync, tmp_path, folder):
    outside = tmp_path / "outside"
    outside.mkdir()
    vault.mkdir()
    (vault / folder).symlink_to(outside)
    records = [add(store, level=level) for level in m.LEVELS]
    store.memories.change(add(store, "旧"), {"status": "archived"}, "test", "forget", NOON)
    counts = sync()
    assert list(outside.iterdir()) == [] and len(counts["errors"]) == 1
    assert counts["written"] + counts["blocked"] == 4
    (vault / folder).unlink()
    sync()
    assert summary(sync()) == {"unchanged": 4} and all(note_of(vault, r) for r in records)


@symlinks
def test_a_folder_that_became_a_link_later_is_not_followed(store, vault, sync, tmp_path):
    record = add(store)
    sync()
    outside = tmp_path / "outside"
    os.rename(vault / "L1-关键摘要", outside)
    (vault / "L1-关键摘要").symlink_to(outside)
    before = state(outside)
    store.memories.change(record, {"text": "改"}, "test", "update", NOON)
    assert sync()["blocked"] == 1 and state(outside) == before


@symlinks
def test_a_note_that_became_a_link_is_left(store, vault, sync, tmp_path):
    record = add(store)
    sync()
    victim = tmp_path / "victim.txt"
    victim.write_text("victim")
    path = note_of(vault, record)
    path.unlink()
    path.symlink_to(victim)
    store.memories.change(record, {"text": "改"}, "test", "update", NOON)
    assert summary(sync()) == {"blocked": 1} and victim.read_text() == "victim"
    assert path.is_symlink()


@symlinks
def test_the_vault_itself_may_be_a_link(store, vault, sync, tmp_path):
    real = tmp_path / "drive"
    real.mkdir()
    vault.symlink_to(real)
    record = add(store)
    assert summary(sync()) == {"written": 1} and note_of(real, record)


# -- hostile content

TITLES = ["a/b", "a\\b", "a:b*c?", 'q"<t>|', "#ash^ [[x]]", "CON", "NUL.txt", ".hid", "..",
          "../../escape", "", "---", "- i", "k: v", "yes", "1e3", "2026-03-01",
          "![[e]]", "<% tp.file.delete() %>", "```dataviewjs", "%%c%%", "🎉", "标" * 200, "T" * 300,
          "café", "cafe\u0301", "Same", "SAME", "\u202ertl", "a\u2028b",
          "C:\\x\\", "{{date}}", "`= this`", "'single", "@at", "{a: b}", "!tag &a *b"]


def test_hostile_titles_give_one_readable_note_each(store, vault, sync):
    records = [add(store, "%s\n正文 %d\n---\ninjected: true\n---\n%s\n%s"
                   % (title, n, m.AUTO_CLOSE, m.AUTO_OPEN), title=title or None)
               for n, title in enumerate(TITLES)]
    knowledge = add(store, "总", level=2, sources=tuple(r.id for r in records))
    assert summary(sync()) == {"written": len(TITLES) + 1}
    assert summary(sync()) == {"unchanged": len(TITLES) + 1}
    names = {p.stem for p in vault.rglob("*.md")}
    for record in records:
        parsed = m.parse_note(note_of(vault, record).read_bytes().decode("utf-8"))
        assert parsed.status == "ok" and parsed.whole and parsed.fields["text"] == record.text
        assert "injected" not in parsed.fields
        assert parsed.fields["uid"] == record.uid
    links = re.findall(r"\[\[([^\[\]|\n]+)\|([^\[\]|\n]+)\]\]",
                       note_of(vault, knowledge).read_text("utf-8"))
    assert len(links) == 2 * len(TITLES) and all(target in names for target, _ in links)
    assert len({name.casefold() for name in names}) == len(names)


def test_memories_of_another_program_get_notes(store, vault, sync):
    store.database.execute("INSERT INTO memory_l2 (category, knowledge, source_ids, tags, "
                           "importance, access_count, created_at, decay_score)"
                           " VALUES ('c', '别的程序写的', 'nonsense', 'x, y', NULL, NULL, 'long ago', "
                           "NULL)")
    store.memories.adopt(NOON)
    assert summary(sync()) == {"written": 1} and summary(sync()) == {"unchanged": 1}


# -- the vault as a place


def test_a_file_in_its_place_is_one_clear_error(store, vault, sync):
    vault.write_text("x")
    with pytest.raises(m.StoreError, match="不是文件夹.* · .*not a folder"):
        sync()
    assert vault.read_text() == "x"


@pytest.mark.skipif(ROOT, reason="permissions do not bind this user")
def test_a_read_only_vault_is_one_clear_error(store, vault, sync):
    add(store)
    m.make_vault(str(vault))
    vault.chmod(0o500)
    try:
        with pytest.raises(m.StoreError, match="权限"):
            sync()
    finally:
        vault.chmod(0o700)


def test_a_vault_that_is_gone_is_not_filled_anew_unasked(store, vault, sync):
    import shutil

    record = add(store)
    sync()
    shutil.rmtree(vault)
    for settings in ({}, {"dry_run": True}):
        with pytest.raises(m.StoreError, match="笔记库不见了"):
            sync(**settings)
    vault.mkdir()  # an empty mount point
    with pytest.raises(m.StoreError, match="vault is gone"):
        sync()
    m.make_vault(str(vault))  # what `init` does
    assert summary(sync()) == {"written": 1} and note_of(vault, record)


def test_another_vault_begins_anew(store, vault, sync, tmp_path):
    record = add(store)
    sync()
    other = tmp_path / "other"
    assert summary(m.sync_vault(store, str(other), now=NOON)) == {"written": 1}
    assert note_of(other, record)
    assert summary(sync()) == {"unchanged": 1}  # and back: the same bytes are ours


def test_a_moved_vault_is_known_again(store, vault, sync, tmp_path):
    add(store)
    sync()
    os.rename(vault, tmp_path / "moved")
    assert summary(m.sync_vault(store, str(tmp_path / "moved"), now=NOON)) == {"unchanged": 1}


def test_notes_of_a_store_that_forgot_them_are_taken_over(store, vault, sync):
    same, changed = add(store, "甲"), add(store, "乙")
    sync()
    store.notes.clear()
    store.memories.change(changed, {"importance": 0.1}, "test", "update", NOON)
    before = state(vault)
    assert summary(sync()) == {"unchanged": 1, "edited": 1} and state(vault) == before
    assert store.notes.get([same.uid])[same.uid].state == "ours"


def test_two_runs_at_once_wait_for_each_other(store, vault, sync, monkeypatch):
    sync()
    monkeypatch.setattr(m.FileLock.__init__, "__defaults__", (0.1,))
    with m.FileLock(str(vault / m.VAULT_LOCK), "忙", "busy"), pytest.raises(m.TieredError) as caught:
        sync()
    assert caught.value.code == "busy"
    assert summary(sync()) == {}


@symlinks
def test_a_linked_lock_is_refused(store, vault, sync, tmp_path):
    m.make_vault(str(vault))
    (vault / m.VAULT_LOCK).symlink_to(tmp_path / "victim")
    with pytest.raises(m.StoreError):
        sync()
    assert not (tmp_path / "victim").exists()


# -- a kill at every step

def _die_at(when):
    """From now on this process ends at the `when`-th step of a run, as by kill -9."""
    steps = [0]

    def step():
        steps[0] += 1
        if steps[0] == when:
            os._exit(9)

    def dying(cls, name):
        real = getattr(cls, name)

        def call(*args):
            step()
            result = real(*args)
            step()
            return result
        setattr(cls, name, call)
    for name in ("stage", "place", "remove_if"):
        dying(m.VaultFolder, name)
    for name in ("_confirm", "_finish_interrupted"):
        dying(m.VaultSync, name)
    m.BATCH_NOTES = 3


def _run_and_die(store, vault, when):
    """A run in a process of its own; whether it was killed."""
    child = os.fork()
    if child == 0:
        try:
            _die_at(when)
            m.sync_vault(m.Store(store.path, NOON), str(vault), now=NOON + when)
            os._exit(8)
        finally:
            os._exit(7)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (8, 9)
    return code == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the process is killed in a fork")
def test_a_kill_between_any_two_steps_is_repaired(store, vault, sync):
    records = [add(store, "记忆 %d" % n) for n in range(4)]
    sync()
    for when in range(1, 99):
        status = ("archived", "active")[when % 2], ("active", "archived")[when % 3 == 0]
        records = [store.memories.change(r,
                                         {"text": "第 %d 次 %s" % (when, r.uid),
                                          "status": status[n % 2]}, "t", "u", NOON)
                   for n, r in enumerate(records)]
        records += [add(store, "新 %d" % when)] if when % 20 == 0 else []
        killed = _run_and_die(store, vault, when)
        if when % 2:
            records[0] = store.memories.change(records[0], {"status": "archived"}, "t", "u", NOON)
        counts = sync(now=NOON + when)
        assert not counts["edited"] + counts["missing"] + counts["blocked"], (when, counts)
        assert not counts["errors"], (when, counts)
        assert summary(sync(now=NOON + when)) == {"unchanged": len(records)}
        for record in records:
            path = note_of(vault, record)
            assert m.parse_note(path.read_text("utf-8")).fields["text"] == record.text
            assert path.parent.name == m.folder_of(record)
        assert not [p for p in vault.rglob(".*") if p.name != m.VAULT_LOCK]
        if not killed:
            break  # past the last step
    assert 20 < when < 98


def test_a_full_disk_is_one_clear_error_and_the_next_run_goes_on(store, vault, sync, monkeypatch):
    records = [add(store, "记忆 %d" % n) for n in range(5)]
    real, left = m.VaultFolder.stage, [3]

    def full(folder, path, data):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return real(folder, path, data)
    monkeypatch.setattr(m.VaultFolder, "stage", full)
    with pytest.raises(m.StoreError, match="磁盘已满.* · .*disk is full"):
        sync()
    assert not list(vault.rglob("*.tmp"))
    left[0] = 99
    assert summary(sync()) == {"written": 5} and all(note_of(vault, r) for r in records)


def test_an_edit_between_look_and_write_survives(store, vault, sync, monkeypatch):
    record = add(store)
    sync()
    path, real = note_of(vault, record), m.VaultFolder.stage

    def racing(folder, name, data):
        path.write_text("我刚写的", "utf-8")
        return real(folder, name, data)
    monkeypatch.setattr(m.VaultFolder, "stage", racing)
    store.memories.change(record, {"text": "改"}, "test", "update", NOON)
    counts = sync()
    assert counts["blocked"] == 1 and counts["errors"] and path.read_text("utf-8") == "我刚写的"


def test_an_unchanged_run_renders_and_reads_nothing(store, vault, sync, monkeypatch):
    with store.write():
        for n in range(700):
            add(store, "记忆 %d" % n, level=1 + n % 3, sources=(1,) if n % 3 else ())
    sync()

    def never(*_):
        raise AssertionError
    monkeypatch.setattr(m, "render_note", never)
    monkeypatch.setattr(m.VaultFolder, "read", never)
    assert summary(sync()) == {"unchanged": 700}
