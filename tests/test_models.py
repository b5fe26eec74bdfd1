"""The optional embedder: a real service on loopback, a real command, and all the ways they fail."""
import json
import math
import subprocess
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import NOON, TOOL

import memory_tiered as m

ALIKE = {m.document_tokens(word)[0]: same for same, words in {
    "car": "汽车 轿车 automobile vehicle", "cat": "猫咪 feline"}.items() for word in words.split()}
TEXTS = ("the car is parked outside", "a cat sleeps on the sofa", "数据库连接池上限设为二十", "买了一辆汽车", "猫咪生病了",
         "deploy with pnpm on Friday")


def embedding(text):
    """A bag of hashed words in which words of one meaning are one word."""
    vector = [0.01] * 64
    for word in m.document_tokens(text):
        vector[zlib.crc32(ALIKE.get(word, word).encode()) % 64] += 1
    return vector


class Service:
    """/v1/embeddings on loopback; `answer(texts)` gives (status, body) and may be exchanged."""

    def __init__(self):
        self.asked, self.headers, self.paths = [], [], []
        self.answer = self.well
        service = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.asked.append(body["input"])
                service.headers.append(dict(self.headers))
                service.paths.append(self.path)
                status, data = service.answer(body["input"])
                try:
                    self.send_response(status)
                    for name, value in (("Location", "/elsewhere"),) if status == 302 else ():
                        self.send_header(name, value)
                    self.end_headers()
                    for part in [json.dumps(data).encode()] if isinstance(data, (dict, list)) else data:
                        self.wfile.write(part)
                except OSError:
                    pass  # it was too slow for who asked

            def do_GET(self):
                service.headers.append(dict(self.headers))
                self.send_response(404)
                self.end_headers()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def well(self, texts):
        rows = [{"index": i, "embedding": embedding(text)} for i, text in enumerate(texts)]
        return 200, {"data": rows[::-1]}  # a service may answer in any order

    def texts(self):
        return [text for batch in self.asked for text in batch]


@pytest.fixture
def service():
    running = Service()
    yield running
    running.server.shutdown()
    running.server.server_close()


@pytest.fixture
def memory(home, service):
    config = m.Config({"embed.url": service.url, "embed.model": "words", "embed.timeout_s": 0.5})
    opened = m.Memory(config=config, now=NOON, by="test")
    for text in TEXTS:
        opened.add(1, text, session_id="s")
    yield opened
    opened.close()


def found(memory, question, **conditions):
    return [hit.record.text for hit in memory.search(question, touch=False, **conditions)]


def log(memory):
    return "\n".join(m.read_log(memory.places.log))


# -- making vectors


def test_index_makes_what_is_missing_and_no_more(memory, service):
    assert memory.make_vectors()["made"] == len(TEXTS) and service.paths == ["/v1/embeddings"]
    assert memory.make_vectors() == {"model": "words", "made": 0, "vectors": len(TEXTS)} and len(service.asked) == 1
    rows = memory.store.database.rows("SELECT doc, dimension, length(signature), length(vector) FROM memory_vectors")
    assert len(rows) == len(TEXTS) and {row[1:] for row in rows} == {(64, 8, 256)}
    vector = memory.store.vectors.get("words", [rows[0][0]])[rows[0][0]]
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-6)


def test_text_is_sent_without_secrets_and_sensitive_ones_not_at_all(memory, service):
    memory.add(1, "token = ghp_%s is ours" % ("a1B2" * 9), session_id="s")
    memory.add(1, "我的身体状况不对外人说", session_id="s", sensitivity="sensitive")
    memory.make_vectors()
    found(memory, "what is ghp_%s" % ("a1B2" * 9))
    assert "ghp_a1B2" not in str(service.asked) and "身体" not in str(service.asked)
    assert "[REDACTED" in str(service.asked)


def test_changed_text_or_model_is_made_anew_and_purge_takes_it_out(memory, service):
    memory.make_vectors()
    memory.update("L1:1", importance=0.9)
    assert memory.make_vectors()["made"] == 0
    memory.update("L1:1", text="the truck is parked outside")
    assert memory.store.vectors.count("words") == len(TEXTS) - 1
    assert memory.make_vectors()["made"] == 1 and service.asked[-1] == ["the truck is parked outside"]
    memory.purge("L1:2")
    assert memory.store.vectors.count("words") == len(TEXTS) - 1
    memory.embedder.model = memory.embedder.name = "another"
    assert memory.make_vectors() == {"model": "another", "made": len(TEXTS) - 1, "vectors": len(TEXTS) - 1}
    assert memory.store.vectors.count("words") == 0


def test_another_dimension_under_the_same_name_replaces_the_old(memory, service):
    memory.make_vectors()
    service.answer = lambda texts: (200, {"data": [{"index": i, "embedding": [1, i + 1, 1]} for i, _ in enumerate(texts)]})
    assert "汽车" in str(found(memory, "汽车"))  # of no use meanwhile, and no harm
    memory.add(1, "one more memory", session_id="s")
    memory.make_vectors()
    assert memory.store.vectors.count("words") == 1
    assert memory.make_vectors()["vectors"] == len(TEXTS) + 1


def test_a_text_changed_while_the_model_thinks_gets_no_old_vector(memory, service):
    other = m.Memory(store=memory.places.db, now=NOON)

    def slowly(texts):
        if "new text of the first" not in texts:
            other.update("L1:1", text="new text of the first")
            other.close()
        return service.well(texts)

    service.answer = slowly
    assert memory.make_vectors()["made"] == len(TEXTS) - 1
    assert memory.make_vectors()["made"] == 1


def test_what_a_service_refuses_is_split_and_cut(memory, service):
    memory.add(1, "long " * 800, session_id="s")

    def narrow(texts):
        return service.well(texts) if sum(map(len, texts)) < 600 else (413, {"error": "too long"})

    service.answer = narrow
    assert memory.make_vectors()["made"] == len(TEXTS) + 1
    service.answer = lambda texts: (400, {"error": "never"})
    memory.add(1, "a text that nobody takes", session_id="s")
    assert memory.make_vectors()["made"] == 0


def test_distill_makes_vectors_and_outlives_a_dead_service(memory, service):
    memory.distill()
    assert memory.store.vectors.count("words") == len(TEXTS)
    memory.add(1, "and one more of them", session_id="s")
    service.answer = lambda texts: (500, {"error": "out of memory"})
    assert memory.distill()["sessions"] == 0 and "HTTP 500" in log(memory)


# -- searching


@pytest.mark.parametrize("question, text", [
    ("automobile", TEXTS[0]), ("feline", TEXTS[1]), ("轿车", TEXTS[3]), ("feline", TEXTS[4])])
def test_meaning_finds_what_shares_no_word(memory, question, text):
    assert text not in found(memory, question)
    memory.make_vectors()
    hits = {hit.record.text: hit for hit in memory.search(question)}
    assert 0 < hits[text].score <= 1 and hits[text].parts["words"] == {} and hits[text].parts["meaning"] >= m.NEAR
    assert text not in found(memory, question, meaning=False)


def test_words_still_lead_and_scores_stay_between_0_and_1(memory):
    memory.make_vectors()
    hits = memory.search("the car is parked outside")
    assert hits[0].record.text == TEXTS[0] and all(0 <= hit.score <= 1 for hit in hits)
    assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
    assert found(memory, "zebra quux") == []


def test_filters_hold_for_meaning(memory):
    memory.add(1, "the vehicle of the shop", session_id="s", project="shop")
    memory.add(2, "vehicle insurance", category="c", tags=["t"])
    memory.make_vectors()
    memory.forget(["L1:1"])
    assert TEXTS[0] not in found(memory, "automobile") and TEXTS[0] in found(memory, "automobile", status="archived")
    assert found(memory, "automobile", project="shop") == ["the vehicle of the shop"]
    assert found(memory, "automobile", levels=(2,)) == found(memory, "automobile", tags=["t"]) == ["vehicle insurance"]
    other = m.Memory(config=memory.config, user="somebody", now=NOON)
    assert found(other, "automobile") == []
    other.close()


def test_a_narrow_filter_finds_what_many_others_are_nearer_than(memory):
    crowd = [{"text": text % number, "session_id": "s", "project": "crowd"} for number in range(300)
             for text in ("vehicle %d", "note %d", "page %d")]
    memory.store.memories.insert_many(1, crowd, "test", NOON)
    memory.add(1, "the vehicle of one person", session_id="s", project="alone")
    memory.make_vectors()
    assert len(found(memory, "automobile", project="alone")) == 1


def test_recall_asks_only_when_told_to(memory, service):
    memory.make_vectors()
    asked = len(service.asked)
    assert memory.recall("where is the automobile?").text == "" and len(service.asked) == asked
    assert TEXTS[0] in memory.recall("where is the automobile?", meaning=True).text
    memory.add(1, "another shop's vehicle", session_id="s", project="/elsewhere")
    memory.make_vectors()
    assert "elsewhere" not in str(memory.recall("automobile vehicle", meaning=True, project="/here").items)


def test_a_question_is_asked_once(memory, service):
    memory.make_vectors()
    for _ in range(3):
        found(memory, "automobile")
    assert service.texts().count("automobile") == 1


def test_no_vectors_no_question(memory, service):
    found(memory, "automobile")
    assert service.asked == []


# -- failing


BAD = {
    "500": (500, {"error": "oops"}), "not JSON": (200, (b"<html>",)), "no data": (200, {"object": "list"}), "a list": (200, [1]),
    "too few": (200, {"data": []}), "text": (200, {"data": [{"index": 0, "embedding": ["a"]}]}),
    "booleans": (200, {"data": [{"index": 0, "embedding": [True, False]}]}),
    "NaN": (200, (b'{"data": [{"index": 0, "embedding": [NaN, 1]}]}',)),
    "infinite": (200, (b'{"data": [{"index": 0, "embedding": [1e999, 1]}]}',)),
    "huge": (200, (b'{"data": [{"index": 0, "embedding": [1%s, 1]}]}' % (b"0" * 400),)),
    "zero": (200, {"data": [{"index": 0, "embedding": [0, 0]}]}), "empty": (200, {"data": [{"index": 0, "embedding": []}]}),
    "deep": (200, (b"[" * 100_000,)), "base64": (200, {"data": [{"index": 0, "embedding": "AAAA"}]}), "redirect": (302, ())}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_leaves_search_as_it_was(memory, service, name):
    memory.make_vectors()
    service.answer = lambda texts: BAD[name]
    asked = len(service.asked)
    assert found(memory, "car parked") == [TEXTS[0]]
    found(memory, "another question")
    assert len(service.asked) == asked + 1  # it rests after a failure
    assert log(memory).count("embedder failed") == 1
    memory.embedder._resting_until = 0
    service.answer = service.well
    assert TEXTS[0] in found(memory, "automobile")


def test_bad_batches_raise_one_clear_error(memory, service):
    service.answer = lambda texts: (200, {"data": [{"index": i, "embedding": [1] * (2 + i)} for i, _ in enumerate(texts)]})
    with pytest.raises(m.TieredError, match="dimensions") as caught:
        memory.make_vectors()
    assert caught.value.exit_code == 1 and memory.store.vectors.count("words") == 0


@pytest.mark.parametrize("first, between", [(3, 0), (0, 0.2)])
def test_a_slow_service_costs_no_more_than_the_timeout(memory, service, first, between):
    memory.make_vectors()

    def slowly(texts):
        time.sleep(first)
        return 200, (time.sleep(between) or b" " for _ in range(30))

    service.answer = slowly
    started = time.monotonic()
    assert found(memory, "car parked") == [TEXTS[0]] and time.monotonic() - started < 2


def test_nobody_there(memory, service):
    memory.make_vectors()
    memory.embedder.url = "http://127.0.0.1:9"
    assert found(memory, "car parked") == [TEXTS[0]] and "embedder failed" in log(memory)
    with pytest.raises(m.TieredError):
        memory.embedder.vectors(["x"])


def test_the_key_goes_to_the_service_alone(memory, service, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "shared-key\n")
    memory.make_vectors()
    assert service.headers[-1]["Authorization"] == "Bearer shared-key"
    monkeypatch.setenv("MEMORY_TIERED_EMBED_KEY", "own-key")
    service.answer = lambda texts: (401, {"error": "bad key own-key"})
    found(memory, "automobile")
    assert service.headers[-1]["Authorization"] == "Bearer own-key" and "own-key" not in log(memory)
    service.answer = lambda texts: (302, ())
    memory.embedder._resting_until = 0
    found(memory, "another question")
    assert "Authorization" not in service.headers[-1]
    monkeypatch.setenv("MEMORY_TIERED_EMBED_KEY", "two\nqq-secret")
    memory.embedder._resting_until = 0
    found(memory, "a third question")
    assert "secret" not in log(memory) and "own-key" not in open(memory.places.db, "rb").read().decode("latin-1")


def test_a_proxy_is_not_for_loopback(memory, service, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert memory.make_vectors()["made"] == len(TEXTS)


@pytest.mark.parametrize("url, address", [
    ("http://localhost:11434", "http://localhost:11434/v1/embeddings"), ("http://x/v1", "http://x/v1/embeddings"),
    ("http://x/v1/embeddings/", "http://x/v1/embeddings"), ("https://x/api/v3", "https://x/api/v3/embeddings")])
def test_what_people_write_as_url(url, address):
    assert m.endpoint_of(url) == address


@pytest.mark.parametrize("url", ["file:///etc/passwd", "localhost:11434", "ftp://x", "http://"])
def test_what_is_no_url(url):
    with pytest.raises(m.TieredError):
        m.endpoint_of(url)


# -- the command

SCRIPT = """
import json, sys
for line in sys.stdin:
    text = json.loads(line)["text"]
    print(json.dumps([text.count(c) + 0.01 for c in "aeiou猫"]))
"""


def by_command(tmp_path, script, **settings):
    path = tmp_path / "embed it.py"
    path.write_text(script, encoding="utf-8")
    config = m.Config({"embed.command": '"%s" "%s"' % (sys.executable, path), **settings})
    return m.Memory(config=config, now=NOON)


def test_a_command_reads_lines_and_prints_arrays(home, tmp_path):
    memory = by_command(tmp_path, SCRIPT, **{"embed.timeout_s": 20})
    for text in ("aaa", "eee", "猫猫\n猫", "ooo", "iii"):
        memory.add(1, text, session_id="s")
    assert memory.make_vectors()["made"] == 5
    assert found(memory, "xaxaxa") == ["aaa"] and found(memory, "狗和猫猫猫", meaning=True)[0].startswith("猫")
    memory.close()


@pytest.mark.parametrize("script", ["import sys; sys.exit('no model')", "print('[1, 2]')", "print('hello')",
                                    "import time; time.sleep(30)", "print('[' * 99999)"])
def test_a_failing_command_leaves_search_as_it_was(home, tmp_path, script):
    memory = by_command(tmp_path, SCRIPT)
    memory.add(1, "部署脚本在 scripts 目录", session_id="s")
    memory.make_vectors()
    memory.close()
    memory = by_command(tmp_path, script + "\nprint('[3]')", **{"embed.timeout_s": 0.5})
    assert len(found(memory, "部署脚本")) == 1 and "embedder failed" in log(memory)
    memory.close()


# -- the command line


def test_commands_and_doctor_tell_the_state(cli, service):
    cli("init")
    assert cli.json("doctor", code=None)["facts"]["embedder"] == {"ok": None, "value": "off"}
    assert cli("index", code=2).stderr.startswith("❌ 还没有设置嵌入服务")
    cli("config", "set", "embed.url", service.url)
    cli("config", "set", "embed.model", "words")
    for text in TEXTS:
        cli("add-l1", "--session-id", "s", "--summary", text)
    assert cli.json("index") == {"model": "words", "made": len(TEXTS), "vectors": len(TEXTS)}
    hits = cli.json("search", "automobile", "--explain")["hits"]
    assert {hits[0]["text"], hits[1]["text"]} == {TEXTS[0], TEXTS[3]} and hits[0]["parts"]["meaning"] > 0.3
    assert "语义 · meaning" in cli("search", "automobile", "--explain").stdout
    assert TEXTS[0] in cli("recall", "where is the automobile?").stdout
    assert cli.json("doctor", code=None)["facts"]["embedder"] == {
        "ok": True, "value": {"model": "words", "vectors": len(TEXTS), "missing": 0}}
    service.answer = lambda texts: (500, {})
    assert cli.json("doctor", code=1)["facts"]["embedder"]["ok"] is False
    assert "embedder failed: HTTP 500" in cli("index", code=0).stderr + cli("doctor", code=1).stdout


def test_a_hook_asks_no_model(cli, service):
    cli("config", "set", "embed.url", service.url)
    cli("add-l1", "--session-id", "s", "--summary", TEXTS[0])
    cli("index")
    asked = len(service.asked)
    payload = json.dumps({"session_id": "h", "hook_event_name": "UserPromptSubmit", "prompt": "where is the car parked outside?"})
    code = "import sys; sys.path.insert(0, %r); import memory_tiered as m; m.hook_main(['--agent', 'claude']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code % TOOL.rpartition("/")[0]], input=payload, env=cli.env,
                          capture_output=True, text=True, check=True)
    assert "parked" in done.stdout and len(service.asked) == asked
    assert not {"urllib.request", "http.client", "subprocess", "array"} & set(done.stdout.split())


# -- arithmetic


def test_signatures_order_by_angle():
    near, far = m.sign_bits([1, 1, 1, -1]), m.sign_bits([-1, -1, 1, 1])
    asked = int.from_bytes(m.sign_bits([1, 1, 1, 1]), "big")
    signatures = [int.from_bytes(s, "big") for s in (far, near)]
    assert list(m.by_distance([10, 20], signatures, asked)) == [20, 10]


def test_store_with_one_vector_is_no_error(home, service):
    memory = m.Memory(config=m.Config({"embed.url": service.url}), now=NOON)
    memory.add(1, TEXTS[0], session_id="s")
    memory.make_vectors()
    assert found(memory, "car") == [TEXTS[0]] and found(memory, "?!") == []
    memory.close()
