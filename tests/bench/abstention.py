"""Does recall stay silent where it cannot know? Prints a table; nothing is asserted.

    PYTHONPATH=. python3 tests/bench/abstention.py DATA [DATA ...] [--foreign DATA=DATA]

DATA is a folder with docs.jsonl {id, text, session, time, speaker, store} and queries.jsonl {id, text, gold, store}.
own: share of the questions whose answer is among the first five and above the threshold, of those whose answer is
among the first five at all. foreign: share of the questions that get anything above the threshold from a store that
is not theirs: the next store of the same data set, or with --foreign A=B the questions of B asked of A.
"""
import argparse
import collections
import json
import os
import random
import tempfile

import memory_tiered as m

THRESHOLDS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6)


def load(folder, limit):
    """({store: documents}, {store: questions}) of a data set, at most `limit` questions."""
    documents, questions = collections.defaultdict(list), collections.defaultdict(list)
    read = lambda name: [json.loads(line) for line in open(os.path.join(folder, name), encoding="utf-8") if line.strip()]
    for document in read("docs.jsonl"):
        documents[document.get("store", "all")].append(document)
    asked = [question for question in read("queries.jsonl") if question.get("split", "dev") == "dev"]
    for question in random.Random(1).sample(asked, min(limit, len(asked))):
        questions[question.get("store", "all")].append(question)
    return documents, questions


def make_index(documents, folder):
    """An index of the documents, and their ids in its order."""
    database = m.Database(os.path.join(folder, os.urandom(6).hex()), [lambda db: m.create_index(db, "memory")])
    index = m.Index(database, "memory")
    index.put_many((number * 4 + 1, d["text"], d.get("session"), d.get("speaker"), d.get("time"), ())
                   for number, d in enumerate(documents))
    return index, [d["id"] for d in documents]


def own_rates(indexes, questions):
    """The share kept at each threshold, and how many questions that is of."""
    kept, total = dict.fromkeys(THRESHOLDS, 0), 0
    for store, (index, ids) in indexes.items():
        for question in questions[store]:
            right = [score for doc, score, _ in m.rank(index, question["text"], limit=5) if ids[doc >> 2] in question["gold"]]
            total += bool(right)
            for threshold in THRESHOLDS:
                kept[threshold] += bool(right) and max(right) >= threshold
    return [kept[t] / max(1, total) for t in THRESHOLDS], total


def foreign_rates(pairs):
    """The share of (index, question) pairs that get something at each threshold."""
    best = [max((score for _, score, parts in m.rank(index, question["text"], limit=5) if parts["words"]), default=0.0)
            for index, question in pairs]
    return [sum(score >= t for score in best) / max(1, len(best)) for t in THRESHOLDS], len(best)


def show(name, rates, number):
    print("%-52s %5d  %s" % (name, number, "  ".join("%.2f" % rate for rate in rates)))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data", nargs="+")
    options.add_argument("--foreign", action="append", default=[], help="A=B: questions of B asked of the stores of A")
    options.add_argument("--limit", type=int, default=300, help="questions a data set")
    given = options.parse_args()
    print("%-52s %5s  %s" % ("threshold", "n", "  ".join("%.2f" % t for t in THRESHOLDS)))
    with tempfile.TemporaryDirectory() as folder:
        for path in given.data:
            name = os.path.basename(path.rstrip("/"))
            documents, questions = load(path, given.limit)
            indexes = {store: make_index(documents[store], folder) for store in sorted(documents)}
            show(name + " own", *own_rates(indexes, questions))
            if len(indexes) > 1:
                stores = sorted(indexes)
                following = dict(zip(stores, stores[1:] + stores[:1]))
                show(name + " foreign", *foreign_rates([(indexes[following[s]][0], q) for s in stores for q in questions[s]]))
        for pair in given.foreign:
            store, other = pair.split("=")
            index, _ = make_index([d for docs in load(store, 0)[0].values() for d in docs], folder)
            asked = [question for some in load(other, given.limit)[1].values() for question in some]
            show("%s asked of %s" % (os.path.basename(other.rstrip("/")), os.path.basename(store.rstrip("/"))),
                 *foreign_rates([(index, question) for question in asked]))


if __name__ == "__main__":
    main()
