"""Answers: passages that contain one, against a slow loop over tokens; the cache of answers; and Answer@k."""

import io
import json
import sys
import unicodedata
from functools import partial

import numpy as np
import pytest

from calls import uncalled
from hardneg.data.collection import Collection
from hardneg.errors import InputError, ResourceError, SettingsError
from hardneg.evaluation import answers as module
from hardneg.evaluation import matching
from hardneg.evaluation.answers import AnswerCache, check_answers, evaluate_with_answers, judge_by_answers
from hardneg.evaluation.matching import (
    Passage,
    contains,
    folded,
    match_pairs,
    read_answers,
    request,
    serve,
    tokens_of,
)
from hardneg.evaluation.measures import Measure, evaluate, parse_measures
from hardneg.records import Qrels
from hardneg.storage.artifacts import is_published
from worlds.tiny_records import run_of

# ---------------------------------------------------------------- what contains an answer


def slow_tokens(text):
    """Tokens, a character at a time, by the categories of Unicode."""
    tokens, inside = [], False
    for character in unicodedata.normalize("NFD", text):
        kind = unicodedata.category(character)[0]
        if kind in "LNM":
            if not inside:
                tokens.append("")
            tokens[-1] += character
        elif kind not in "ZC":
            tokens.append(character)
        inside = kind in "LNM"
    return [token.lower() for token in tokens]


def slow_contains(text, answers):
    """A list of tokens within a list of tokens."""
    tokens = slow_tokens(text)
    wanted = [slow_tokens(answer) for answer in answers]
    return any(tokens[i : i + len(answer)] == answer for answer in wanted if answer for i in range(len(tokens)))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The U.S. won 3-1!", ["the", "u", ".", "s", ".", "won", "3", "-", "1", "!"]),
        ("Café_x", ["cafe\u0301", "_", "x"]),  # a mark belongs to its letter; an underscore stands alone
        ("cafe\u0301", ["cafe\u0301"]),
        ("a\u00a0b\tc\u200bd", ["a", "b", "c", "d"]),  # no-break space, tab and format characters separate
        ("日本 1½", ["日本", "1½"]),
        ("$12 €5", ["$", "12", "€", "5"]),
        ("ΟΔΟΣ İ", ["οδος", "i\u0307"]),
        (" \n\u200b", []),
    ],
)
def test_tokens_by_hand(text, tokens):
    assert tokens_of(text) == tokens == slow_tokens(text)


@pytest.mark.parametrize(
    ("text", "answers", "found"),
    [
        ("It began in October 1973.", ["october"], True),
        ("It began in October 1973.", ["October  1973"], True),
        ("It began in October, 1973.", ["October 1973"], False),  # the comma is a token
        ("Octobers", ["October"], False),  # whole tokens
        ("the price was $12.50", ["$12"], True),
        ("the price was $12.50", ["$12.5"], False),
        ("U.S. Army", ["US"], False),
        ("CAFE\u0301 de Paris", ["café"], True),
        ("nothing of the kind", ["", " ", "\u200b"], False),  # answers without a token
        ("nothing of the kind", ["", "kind"], True),
        ("a b a b c", ["a b c"], True),
        ("a.b", ["a b"], False),
        ("σας", ["ΣΑΣ"], True),
        ("σασ", ["ΣΑΣ"], False),  # lower-casing ends the answer with another sigma than the text has
        ("x", [], False),
        ("北京是中国的首都。", ["北京"], False),  # no blank divides the words: a run of letters is one
        ("首都：北京。", ["北京"], True),
    ],
)
def test_answers_by_hand(text, answers, found):
    assert contains(text, answers) == found == slow_contains(text, answers)


@pytest.mark.parametrize(
    ("text", "pattern", "found"),
    [
        ("born in 1973", r"19\d\d", True),
        ("born in 1873", r"19\d\d", False),
        ("Mount EVEREST", "everest|k2", True),
        ("one\ntwo", "^two$", True),
        ("Café", "cafe\u0301", True),  # both are decomposed
        ("octobers", "october", True),  # no whole tokens
        ("北京是中国的首都。", "中国", True),
        ("กรุงเทพเป็นเมืองหลวงของไทย", "เมืองหลวง", True),
        ("C++ and C", r"C\+\+", True),
        ("a USB port", "U.B", True),  # a dot is any character
        ("a USB port", r"U\.B", False),
        ("anything", "(", False),  # no pattern
        ("anything", "", False),
        ("anything", "  ", False),
    ],
)
def test_patterns_by_hand(text, pattern, found):
    assert contains(text, [pattern], "regex") == found


ALPHABET = "aAbBσΣς éÉe\u0301İıß½3.,'-_$ \u00a0\u200b\u0308日ⅧⒶ"


def random_texts(n, length, seed):
    draw = np.random.default_rng(seed)
    return ["".join(draw.choice(list(ALPHABET), draw.integers(0, length))) for _ in range(n)]


def test_matching_equals_a_slow_loop():
    texts, wanted = random_texts(80, 60, 0), random_texts(400, 4, 1)
    hits = 0
    for text in texts:
        for answers in np.array_split(np.array(wanted, object), 100):
            found = contains(text, list(answers))
            assert found == slow_contains(text, answers), (text, list(answers))
            hits += found
    assert 800 < hits < 7_200


def test_every_character_of_unicode():
    categories = {chr(code): unicodedata.category(chr(code)) for code in range(sys.maxunicode + 1)}
    characters = [character for character, kind in categories.items() if kind not in ("Cs", "Cn", "Co")]
    text = " ".join(characters)
    assert tokens_of(text) == slow_tokens(text)
    # the quick look at a text may miss nothing: what lower-casing makes equal, folding makes equal, each by itself
    assert folded(text) == "".join(map(folded, text))
    assert all(folded(character.lower()) == folded(character) for character in characters)


# ---------------------------------------------------------------- the book


TEXTS = [
    "The crisis began in October 1973.",
    "Oil rose to $12 a barrel.",
    "In October leaves fall.",
    "Nothing here.",
    "october 1973, again: $12",
]
ANSWERS = {"q0": ["October 1973"], "q1": ["$12", "twelve dollars"], "q2": ["\u200b"], "q4": ["october", "nothing"]}
TRUTH = {0: {0, 4}, 1: {1, 4}, 2: set(), 3: set(), 4: {0, 2, 3, 4}}


@pytest.fixture
def collection(tmp_path):
    passages = [(f"p{i}", "October 1973", text) for i, text in enumerate(TEXTS)]  # titles do not count
    queries = {f"q{i}": f"question {i}" for i in range(5)}
    qrels = {"test": {"q0": ["p1"], "q1": ["p1"], "q2": [], "q3": ["p3"], "q4": []}, "train": {"q3": ["p0"]}}
    return Collection.from_lists(passages, queries, qrels, answers=ANSWERS, to=tmp_path / "c")


def all_pairs(collection):
    query, passage = np.indices((collection.n_queries, collection.n_passages))
    return query.ravel().astype(np.int32), passage.ravel().astype(np.int32)


def truth(query, passage):
    return [p in TRUTH[q] for q, p in zip(query.tolist(), passage.tolist(), strict=True)]


def test_the_book_by_hand(collection, tmp_path):
    query, passage = all_pairs(collection)
    book = AnswerCache(collection, tmp_path / "cache")
    order = np.random.default_rng(0).permutation(len(query))
    twice = np.concatenate([order, order[:7]])
    assert book.contains(query[twice], passage[twice]).tolist() == truth(query[twice], passage[twice])
    assert book.contains(query[:0], passage[:0]).tolist() == []
    unknown = np.array([0, 99], np.int32)
    assert book.contains(unknown, np.array([99, 0], np.int32)).tolist() == [False, False]


def test_every_pair_is_looked_at_once_by_whoever(collection, tmp_path, monkeypatch):
    query, passage = all_pairs(collection)
    looked = []

    def match(collection, query_rows, passage_rows, mode):
        looked.extend(zip(query_rows.tolist(), passage_rows.tolist(), strict=True))
        return match_pairs(collection, query_rows, passage_rows, mode)

    monkeypatch.setattr(module, "match_pairs", match)
    first, second = (AnswerCache(collection, tmp_path / "cache") for _ in range(2))
    first.contains(query[:8], passage[:8])
    second.contains(query[4:20], passage[4:20])  # opened before, and yet it knows
    later = AnswerCache(collection, tmp_path / "cache")
    assert later.contains(query, passage).tolist() == truth(query, passage)
    assert first.contains(query, passage).tolist() == truth(query, passage)
    with_answers = [(q, p) for q, p in zip(query.tolist(), passage.tolist(), strict=True) if f"q{q}" in ANSWERS]
    assert sorted(looked) == with_answers
    other = AnswerCache(collection, tmp_path / "cache", "regex")
    assert other.contains(query, passage).tolist() != truth(query, passage)  # $12 is another pattern
    pages = [path for path in (tmp_path / "cache/answers").glob("*/*") if is_published(path, "answers")]
    assert len(pages) == 4


def test_answers_that_are_no_patterns_are_told_once(tmp_path, caplog):
    qrels = {"train": {"one": ["p"], "two": ["p"]}}
    answers = {
        "one": ["(a", "b+"],
        "two": ["C++", "c{2}"],
    }  # C++ is one, too
    texts = {"one": "x", "two": "y"}
    made = Collection.from_lists([("p", "a b")], texts, qrels, answers=answers, to=tmp_path / "c")
    rows = np.array([0, 1], np.int32)
    with caplog.at_level("WARNING"):
        AnswerCache(made, tmp_path / "cache").contains(rows, np.zeros(2, np.int32))
        assert not caplog.text, "strings are no patterns"
        book = AnswerCache(made, tmp_path / "cache", "regex")
        assert book.contains(rows, np.zeros(2, np.int32)).tolist() == [True, False]
        book.contains(rows, np.zeros(2, np.int32))
    [told] = caplog.messages
    assert told == "1 of 4 answers that were looked at are no patterns and match nothing; the first is '(a'"


def test_several_processes_find_the_same(collection, tmp_path, monkeypatch):
    query, passage = all_pairs(collection)
    monkeypatch.setattr(module, "ALONE", 4)
    monkeypatch.setattr(module, "usable_threads", lambda: 2)
    here = partial(AnswerCache(collection, tmp_path / "own").contains, query[:4], passage[:4])
    with uncalled(module, "match_pairs", control=here):
        found = AnswerCache(collection, tmp_path / "cache").contains(query, passage)
    assert found.tolist() == truth(query, passage)


def test_what_such_a_process_reads_and_writes(collection):
    query, passage = all_pairs(collection)
    out = io.BytesIO()
    serve(io.BytesIO(request(collection.path, query, passage, "string")), out)
    assert np.frombuffer(out.getvalue(), bool).tolist() == truth(query, passage)


def test_a_process_that_fails_is_told(collection, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ALONE", 1)
    monkeypatch.setattr(module, "usable_threads", lambda: 2)
    (collection.path / "manifest.json").unlink()
    with pytest.raises(RuntimeError, match="NO_MANIFEST"):
        AnswerCache(collection, tmp_path / "cache").contains(*all_pairs(collection))
    assert not (tmp_path / "cache/answers").exists()


def test_a_process_that_is_killed_is_no_bug_of_ours(collection, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ALONE", 1)
    monkeypatch.setattr(module, "usable_threads", lambda: 2)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "dies"))
    (tmp_path / "dies").write_text("#!/bin/sh\ncat > /dev/null\nkill -9 $$\n")
    (tmp_path / "dies").chmod(0o755)
    with pytest.raises(ResourceError, match="OUT_OF_MEMORY: signal 9 ended a process that looked for answers"):
        AnswerCache(collection, tmp_path / "cache").contains(*all_pairs(collection))


def test_a_passage_is_cut_up_once(collection, monkeypatch):
    made = []

    class Counting(Passage):
        def __init__(self, text):
            made.append(text)
            super().__init__(text)

    monkeypatch.setattr(matching, "Passage", Counting)
    query, passage = all_pairs(collection)
    assert match_pairs(collection, query[::-1], passage[::-1], "string").tolist() == truth(query, passage)[::-1]
    assert sorted(made) == sorted(TEXTS)
    assert read_answers(["\u200b", "("], "regex") == []


# ---------------------------------------------------------------- the measure


def score(run, collection, tmp_path, text, split="test", id_rank=None):
    return evaluate_with_answers(
        run,
        collection.qrels(split),
        parse_measures(text),
        collection=collection,
        cache=tmp_path / "cache",
        id_rank=id_rank,
    )


def test_answer_at_k_by_hand(collection, tmp_path):
    run = run_of({0: [3, 2, 4], 1: [0, 2, 3], 2: [0, 1, 2], 4: [1, 3]})
    found = score(run, collection, tmp_path, "Answer@1 Answer@2 Answer@3")
    assert found.query_rows.tolist() == [0, 1, 2, 4]  # those with an answer, if one without tokens
    assert found.values["Answer@1"].tolist() == [0, 0, 0, 0]
    assert found.values["Answer@2"].tolist() == [0, 0, 0, 1]
    assert found.values["Answer@3"].tolist() == [1, 0, 0, 1]
    assert found.as_json() == {
        "measures": {"Answer@1": 0.0, "Answer@2": 0.25, "Answer@3": 0.5},
        "queries": 4,
        "missing": 0,
        "unjudged": 0,
    }


def test_measures_may_count_different_queries(collection, tmp_path):
    run = run_of({0: [1, 4], 3: [0, 3], 4: [0]})  # q1 and q2 are missing
    found = score(run, collection, tmp_path, "RR@10 Answer@1 Success@1")
    assert list(found.values) == ["RR@10", "Answer@1", "Success@1"]
    assert found.query_rows.tolist() == [0, 1, 2, 3, 4]
    assert found.of("RR@10").tolist() == [1.0, 0.0, 0.5]
    assert found.of("Answer@1").tolist() == [0.0, 0.0, 0.0, 1.0]
    assert found.means == {"RR@10": 0.5, "Answer@1": 0.25, "Success@1": pytest.approx(1 / 3)}
    facts = found.as_json()
    assert (facts["queries"], facts["missing"], facts["unjudged"]) == (5, 2, 0)
    assert facts["counted"] == {"RR@10": 3, "Answer@1": 4, "Success@1": 3}


def test_judgements_score_as_without_answers(collection, tmp_path):
    run = run_of({0: [1, 4], 3: [0, 3], 4: [0]})
    alone = evaluate(run, collection.qrels("test"), parse_measures("RR@10 nDCG@3"), id_rank=None)
    both = score(run, collection, tmp_path, "RR@10 nDCG@3")
    assert both.query_rows.tolist() == alone.query_rows.tolist()
    assert (both.missing, both.unjudged, both.means) == (alone.missing, alone.unjudged, alone.means)


def test_ties_rank_by_id_as_for_any_measure(collection, tmp_path):
    run = run_of({0: [0, 3, 4, 2]}, [1.0, 1.0, 1.0, 1.0])
    id_rank = collection.passage_ids.id_rank
    ranked = score(run, collection, tmp_path, "Answer@1 Answer@2", id_rank=id_rank)  # p4, p3, p2, p0
    assert [ranked.values[name][0] for name in ranked.values] == [1.0, 1.0]
    as_read = score(run_of({0: [3, 0, 4, 2]}, [1.0] * 4), collection, tmp_path, "Answer@1 Answer@2")
    assert [as_read.values[name][0] for name in as_read.values] == [0.0, 1.0]


def test_answer_at_k_equals_a_slow_loop(collection, tmp_path):
    draw = np.random.default_rng(3)
    id_rank = collection.passage_ids.id_rank
    for _ in range(40):
        lists = {q: draw.permutation(5)[: draw.integers(0, 6)].tolist() for q in draw.permutation(5)[:4].tolist()}
        scores = draw.integers(0, 3, sum(map(len, lists.values()))).tolist()  # ties, out of order
        run = run_of(lists, scores)
        found = score(run, collection, tmp_path, "Answer@1 Answer@2 Answer@4", id_rank=id_rank)
        left = iter(scores)
        for query, hits in lists.items():
            ranked = sorted(((next(left), int(id_rank[p]), p) for p in hits), reverse=True)
            if query == 3:
                continue
            for k in (1, 2, 4):
                expected = any(p in TRUTH[query] for *_, p in ranked[:k])
                place = found.query_rows.tolist().index(query)
                assert found.values[f"Answer@{k}"][place] == expected


def test_only_the_first_hits_are_looked_at(collection, tmp_path):
    book = AnswerCache(collection, tmp_path / "cache")
    run = run_of({4: [0, 1, 2], 0: [4, 3, 0]})
    found = judge_by_answers(book, run, np.array([0, 4], np.int32), 2)
    assert (found.offsets.tolist(), found.passage_rows.tolist()) == ([0, 1, 2], [4, 0])
    assert len(book.pairs) == 4


def test_patterns_are_asked_for_in_the_measure(collection, tmp_path):
    found = score(run_of({1: [1], 4: [3]}), collection, tmp_path, "Answer(mode=regex)@1 Answer@1")
    assert found.values["Answer(mode=regex)@1"].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert found.values["Answer@1"].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert Measure.parse("Answer(mode=regex)@5") == Measure("Answer", 5, 1, "regex")
    assert str(Measure.parse("answer(mode=string)@5")) == "Answer@5"


@pytest.mark.parametrize("text", ["Answer", "Answer@0", "Answer(rel=2)@5", "RR(mode=regex)@5"])
def test_impossible_measures(text):
    with pytest.raises(SettingsError, match="BAD_MEASURE"):
        parse_measures(text)


def test_no_answers_is_one_clear_line(collection, tmp_path):
    bare = Collection.from_lists([("p", "text")], {"q": "x"}, {"test": {"q": ["p"]}}, to=tmp_path / "bare")
    run = run_of({0: [0]})
    with pytest.raises(
        InputError, match=r"^NO_ANSWERS: Answer@5 looks for answers, but no query of the collection"
    ):
        score(run, bare, tmp_path, "RR@10 Answer@5")
    with pytest.raises(
        InputError, match="NO_ANSWERS: Answer@5 looks for answers, but no query of the split has one"
    ):
        score(run, collection, tmp_path, "Answer@5", split="train")
    with pytest.raises(SettingsError, match="NO_COLLECTION: Answer@5 looks for answers in texts"):
        check_answers(parse_measures("Answer@5"), None)
    check_answers(parse_measures("RR@10"), None)


def test_a_split_without_judgements_is_scored_by_answers_alone(collection, tmp_path):
    bare = Qrels(np.array([0, 4], np.int32), np.zeros(3, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32))
    measures = parse_measures("Answer@1")
    options = {"collection": collection, "cache": tmp_path / "cache", "id_rank": None}
    found = evaluate_with_answers(run_of({0: [0], 4: [1]}), bare, measures, **options)
    assert found.means == {"Answer@1": 0.5}
    assert json.dumps(found.as_json())


def test_tokens_of_plain_text_are_those_of_any_text():
    """ASCII has a way of its own, which finds what the general expression finds."""
    every = [chr(code) for code in range(128)]
    texts = [a + b for a in every for b in every] + ["It's 3.5% of A_b-C, (x)\t[y]\r\n", ""]
    for text in texts:
        assert text.isascii()
        assert matching.tokens_of(text) == [token.lower() for token in matching.TOKEN.findall(text)]
    assert matching.tokens_of("A_b 1") == ["a", "_", "b", "1"]
