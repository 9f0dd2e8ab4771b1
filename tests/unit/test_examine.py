"""``hardneg doctor DATA``: facts about a collection, against slow loops, and the advice that follows."""

import inspect
import json
import random
import re
import string
import sys
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

import hardneg as hn
from hardneg.api.recipes import settings_of
from hardneg.cli import app, run
from hardneg.data import examination
from hardneg.data.collection import Collection
from hardneg.data.near_copies import WIDTH, near, plain, signatures
from worlds.tiny_world import one_thread, tiny_model  # noqa: F401

examine_module = sys.modules[hn.examine.__module__]
LONG = "the quick brown fox jumps over the lazy dog and runs through the dark forest until the morning comes "


def resemblance(one, other):
    """The share of runs of characters that two texts share."""
    a, b = ({text[i : i + WIDTH] for i in range(len(text) - WIDTH + 1)} for text in map(plain, (one, other)))
    return len(a & b) / len(a | b)


def test_nearly_equal_texts_are_found_as_a_slow_loop_finds_them():
    rng = np.random.default_rng(0)
    words = LONG.split()
    texts = [" ".join(rng.choice(words, 30)) for _ in range(60)]
    texts += [text.replace(text.split()[3], "cat", 1) for text in texts[:20]]
    texts += [" ".join(text.split()[:15]) for text in texts[20:30]]
    marks = signatures(texts)
    found = near(marks, marks, itself=True) >= 0
    alike = {
        i: max(resemblance(texts[i], texts[j]) for j in range(len(texts)) if j != i) for i in range(len(texts))
    }
    for i, share in alike.items():
        if share > 0.9 or share < 0.65:  # between them an estimate may say either
            assert found[i] == (share > 0.9), (i, share)
    assert found.sum() >= 30


def test_signatures_estimate_the_resemblance():
    texts = [LONG, LONG + "again and", "a wholly other text of some length, without foxes", LONG.upper() + "!!!"]
    marks = signatures(texts)
    for i, j in combinations(range(4), 2):
        assert abs((marks[i] == marks[j]).mean() - resemblance(texts[i], texts[j])) < 0.2
    assert (marks[0] == marks[3]).all()


def test_long_texts_are_compared_from_their_beginning_to_their_end():
    rng = random.Random(3)

    def words(count):
        return "".join(rng.choice(string.ascii_lowercase + " ") for _ in range(count))

    head, foot, body = words(3000), words(3000), words(9000)
    texts = [head + words(9000), head + words(9000), words(9000) + foot, head + words(9000) + foot]
    marks = signatures([*texts, body, body[:4000] + words(200) + body[4000:], body + "x"])
    assert (near(marks, marks, itself=True) >= 0).tolist() == [False] * 4 + [True] * 3


def test_a_change_anywhere_in_a_long_text_leaves_it_nearly_equal(monkeypatch):
    rng = random.Random(4)

    def words(count):
        return "".join(rng.choice(string.ascii_lowercase + " ") for _ in range(count))

    for length in (1_950, 2_500, 10_000):  # the first grows beyond the length from which on a text is sampled
        body, some = words(length), length // 33
        other = [words(some) + body, body + words(some), body[:700] + words(some) + body[700:]]
        assert near(signatures([body]), signatures(other)).tolist() == [0], length
        assert near(signatures(other), signatures([body])).tolist() == [0] * 3, length
    head = words(2_000)
    marks = signatures([head + words(size) for size in (1_000, 1_000, 8_000, 8_000)])
    assert near(marks, marks, itself=True).tolist() == [-1] * 4
    kept = [body, body + "zero 0 " * 5_000, "日本語😀 \ud800" * 1_000, "0 " * 3_000]
    whole = signatures(kept)
    monkeypatch.setattr("hardneg.data.near_copies.PIECE", 3_000)  # a sample is the same in pieces
    assert ((signatures(kept) == whole).mean(1) > 0.9).all()


def test_a_text_has_its_signature_in_any_block(monkeypatch):
    monkeypatch.setattr("hardneg.data.near_copies.BLOCK", 3)
    texts = [LONG, "", "a", LONG.upper(), "a wholly other text", LONG + "again", "ab", "foxes"]
    assert signatures(texts).tolist() == [signatures([text])[0].tolist() for text in texts]


def test_short_and_empty_texts_have_signatures_too():
    marks = signatures(["", "a", "ab", "a", "我", "我爱北京天安门"])
    assert (near(marks, marks, itself=True) >= 0).tolist() == [False, True, False, True, False, False]
    assert near(signatures([]), marks).tolist() == []
    assert near(marks, signatures([])).tolist() == [-1] * 6


def world(tmp_path, **options):
    passages = {"a": LONG, "b": LONG + "slowly", "c": "another passage of words", "d": "another passage of words"}
    passages |= {"e": "the fifth passage", "f": "the sixth one, which is about something else"}
    queries = {
        "q1": "What jumps?",
        "q2": "who is it",
        "q3": "what  jumps",
        "q4": LONG + "fast",
        "q5": LONG,
        "q6": "x",
    }
    qrels = {
        "train": {"q1": ["a"], "q2": ["c", "d"], "q5": ["e"], "q6": []},
        "test": {"q3": ["e"], "q4": ["f"]},
    }
    return Collection.from_lists(passages, queries, qrels, to=tmp_path / "c", **options)


@pytest.mark.parametrize(
    ("one", "other"), [("दिन", "दान"), ("கடி", "கடு"), ("ค่า", "ค้า"), ("မိ", "မု"), ("x\u0302", "x\u0304")]
)
def test_words_that_differ_by_a_vowel_or_a_tone_are_not_the_same(tmp_path, one, other):
    judged = {"train": {"a": ["p"]}, "dev": {"b": ["p"]}}
    facts = hn.examine(Collection.from_lists({"p": "a text"}, {"a": one, "b": other}, judged, to=tmp_path / "c"))
    assert facts["copies"]["queries_equal"] == 0
    assert facts["leaks"][0]["queries_equal"] == 0


def test_emojis_make_no_difference():
    assert plain("❤️ Hello ☀️world") == plain("hello, world!")


def test_copies_may_have_near_copies_too(tmp_path):
    passages = {"a": LONG, "b": LONG, "c": LONG + "slowly", "d": "something else, of other words"}
    data = Collection.from_lists(passages, {"q": "x"}, {"train": {"q": ["d"]}}, to=tmp_path / "c")
    copies = hn.examine(data)["copies"]
    assert (copies["passages_equal"], copies["passages_nearly_equal"]) == (1, 3)


@pytest.mark.parametrize(
    ("titles", "equal", "retitled"),
    [
        (["", "", ""], 2, ""),
        (["One", "Two", "Three"], 0, "2 passages repeat"),
        (["One", " One ", "Two"], 1, "1 passage repeats"),
        (["One", "", "Two"], 1, "1 passage repeats"),  # it may be either of them
        (["", "", "Two"], 2, ""),
    ],
)
def test_equal_texts_under_different_titles_are_no_copies(tmp_path, titles, equal, retitled):
    """Of some articles only the author is known; who removed these would lose articles."""
    passages = [(f"p{i}", title, "Doe, J.") for i, title in enumerate(titles)]
    passages += [("s", "One", "another text"), ("t", "", "a third text"), ("u", "One", "a third text")]
    data = Collection.from_lists(passages, {"q": "x"}, {"train": {"q": ["s"]}}, to=tmp_path / "c")
    found = hn.examine(data)
    assert found["copies"]["passages_equal"] == equal + 1
    assert found["copies"]["passages_under_another_title"] == 2 - equal
    told = [line for line in found["said"] if "another title" in line]
    assert told == ([f"{retitled} a text under another title."] if retitled else [])
    assert any("are duplicates" in line for line in found["advice"])
    assert data.copies.tolist() == [0, 0, 0, -1, 4, 4], "mining compares texts alone"


def test_the_facts_by_hand(tmp_path):
    found = hn.examine(world(tmp_path))
    assert found["sizes"] == {"passages": 6, "queries": 6, "answers": False}
    assert found["splits"]["train"] == {
        "queries": 4,
        "judgements": 4,
        "positives": 4,
        "without_positives": 1,
        "queries_by_positives": {"0": 1, "1": 2, "2": 1},
    }
    assert found["copies"] == {
        "passages_equal": 1,
        "passages_under_another_title": 0,
        "passages_nearly_equal": 2,
        "passages_compared": 6,
        "queries_equal": 1,
        "queries_compared": 6,
    }
    [leak] = found["leaks"]
    assert leak == {
        "splits": ["train", "test"],
        "queries": 2,
        "compared_with": 4,
        "of_all": True,
        "queries_equal": 1,
        "queries_nearly_equal": 1,
        "example": "what  jumps",
        "positives": 2,
        "positives_equal": 1,
    }
    assert found["lengths"]["queries"] == {"median": 3, "p95": 20, "longest": 20}
    assert "1 duplicate passage (ignoring whitespace)." in found["said"]  # of the two that are equal
    assert "Positives per query in 'train': 0 (1 query), 1 (2 queries), 2 (1 query)." in found["said"]


@pytest.mark.parametrize(
    ("queries", "told"),
    [
        ({"q": "what is it", "r": "", "s": " \u200b"}, "2 queries and 2 passages that are positives are blank: "),
        (
            {"q": "what is it", "r": "who", "s": "seen\u200b"},
            "2 passages that are positives are blank: remove them.",
        ),
    ],
)
def test_blank_texts_are_told_and_are_no_copies(tmp_path, queries, told):
    passages = [
        ("a", "one text"),
        ("b", ""),
        ("c", " \n"),
        ("d", "\u00a0"),
        ("e", "T", ""),
        ("g", "U", " "),
        ("f", "é"),
    ]
    judged = {"train": {"q": ["a"], "r": ["b"], "s": ["c"]}, "test": {"q": ["b", "e"]}}
    data = Collection.from_lists(passages, queries, judged, to=tmp_path / "c", allow_empty=True)
    found = hn.examine(data)
    blank = sum(not text.strip(" \u200b") for text in queries.values())
    assert found["blank"] == {"passages": 3, "positives": 2, "queries": blank}
    assert (found["copies"]["passages_equal"], found["copies"]["passages_nearly_equal"]) == (0, 0)
    (advised,) = (line for line in found["advice"] if "blank:" in line)
    assert advised.startswith(told)
    assert not any("are duplicates" in line for line in found["advice"])


def test_blank_passages_that_no_query_names_are_told_too(tmp_path):
    alone = Collection.from_lists({"a": "one", "b": ""}, to=tmp_path / "c", allow_empty=True)
    assert "1 passage is blank: remove it." in hn.examine(alone)["advice"]
    assert not any("blank:" in line for line in hn.examine(world(tmp_path / "w"))["advice"])


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("<p>Returns the number.</p>", "</p> and <p>"),
        ('see <a href="x.html">here', "<a>"),
        ("one<br/>two", "<br/>"),
        ("<P>Upper <BR> case</P>", "</P>, <BR> and <P>"),
        ("if a &lt; b", "&lt;"),
        ("it&#39;s", "&#39;"),
        ("<div class='x'>text", "<div>"),
        ("a word</li>", "</li>"),
        ("Returns a List<int> or Map<p, List<b>>", ""),
        ("if a < b and c > d: &argv; x & y", ""),
        ("use <name> and <integer>, or Vec<i>", ""),
        ("a << b >> c, std::vector<std::pair<td>>", ""),
    ],
)
def test_markup_in_passages_is_told(tmp_path, text, mark):
    passages = {f"p{i}": f"{text} {i}" if i < 5 else f"plain text {i}" for i in range(10)}
    advised = [
        line for line in hn.examine(Collection.from_lists(passages, to=tmp_path / "c"))["advice"] if "HTML" in line
    ]
    line = f"50 % of the passages hold tags or entities of HTML (such as {mark}): strip them before the import."
    assert advised == ([line] if mark else [])


def test_a_few_tags_are_no_markup(tmp_path):
    passages = {f"p{i}": "<p>" if not i else f"text {i}" for i in range(20)}
    found = hn.examine(Collection.from_lists(passages, to=tmp_path / "c"))
    assert found["markup"] == {"share": 0.05, "such_as": ["<p>"]}
    assert not any("HTML" in line for line in found["advice"])


def test_texts_without_blanks_are_measured_in_characters(tmp_path):
    passages = {"a": "北京是中国的首都。", "b": "東京は 日本です"}
    found = hn.examine(Collection.from_lists(passages, to=tmp_path / "c"))
    assert found["lengths"]["passages"] == {"median": 9, "p95": 9, "longest": 9}
    assert "Passages: median 9 characters, 95th percentile 9." in found["said"]


@pytest.mark.parametrize(("text", "told"), [("{}", True), ("number {}", False)])
def test_passages_that_may_be_ids_are_told(tmp_path, text, told):
    passages = [(f"p{i}", text.format(1000 + i)) for i in range(9)]
    data = Collection.from_lists(passages, {"q": "what is it"}, {"train": {"q": ["p1"]}}, to=tmp_path / "c")
    assert any("call their column `document_id`" in line for line in hn.examine(data)["advice"]) == told


def test_advice_follows_from_what_was_found(tmp_path):
    told = " ".join(hn.examine(world(tmp_path))["advice"])
    for part in (
        "2 queries of 'test' are also in 'train', or nearly so, such as 'what jumps': remove them",
        "17 % of the passages are duplicates.",
        " % of the passages have near-duplicates.",
        "In `warmup`, --set guide_mask=true",
        "There is no dev split: a tenth of the training queries",
        "1 query of 'train' has no positive: it is left out.",
        "There is little to train on (2 training queries): results may differ",
        f"`hardneg train warmup --preset finetune --data {tmp_path / 'c'} --model M --out exp`: 100 steps of 2 "
        "queries, 100 passes over 2 training queries (and 1 held out as dev). These are many passes: fewer may do",
        "such as --epochs 10, which ignores the preset's min_steps. When dev no longer rises, continue from its ",
        f"`hardneg train star --preset finetune --data {tmp_path / 'c'} --model exp --out exp-star`, which mines.",
    ):
        assert part in told
    assert "There is no test split" not in told


@pytest.mark.parametrize("queries", [2, 33, 500, 3_200, 9_601, 200_000])
@pytest.mark.parametrize("changes", [{}, {"epochs": 1.1, "min_steps": 1}])
def test_the_advised_steps_are_those_of_the_preset(queries, changes):
    preset = examine_module.read_preset(*examine_module.BEGIN) | changes
    positives = SimpleNamespace(train=range(queries), held_out=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examine_module, "choose_splits", lambda collection, train, dev_queries: positives)
        patch.setattr(examine_module, "read_preset", lambda *name: preset)
        found = examine_module.training_facts(None, {"train": queries})
    episode = settings_of(*examine_module.BEGIN, **changes).episode_of(queries, 1)
    assert (found["steps"], found["queries_per_step"]) == (episode.steps, episode.queries_per_step)


def test_advice_names_the_split_that_can_be_trained_on(tmp_path):
    passages = {str(i): f"passage number {i}" for i in range(20)}
    queries = {f"q{i}": f"query number {i}" for i in range(20)}
    c = Collection.from_lists(
        passages, queries, {"all": {f"q{i}": [str(i)] for i in range(20)}}, to=tmp_path / "c"
    )
    found = hn.examine(c)
    assert found["training"] == {
        "split": "all",
        "queries": 18,
        "held_out": 2,
        "steps": 100,
        "queries_per_step": 32,
        "passes": 100,
    }
    assert found["advice"][-1].count(f"--preset finetune --train all --data {tmp_path / 'c'} --model ") == 2


def test_a_corpus_alone_and_queries_without_judgements_are_told(tmp_path):
    alone = Collection.from_lists({"a": "one"}, to=tmp_path / "a")
    assert hn.examine(alone)["advice"] == [
        "This is a corpus alone: encode, index and search it. Training needs queries with positives."
    ]
    unjudged = Collection.from_lists({"a": "one"}, {"q": "two"}, {}, to=tmp_path / "b")
    assert "nothing can be trained or measured" in hn.examine(unjudged)["advice"][-1]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("我爱北京天安门，上海在中国的东部。", "chinese"),
        ("私は東京大学で日本語を勉強しました。", "japanese"),
        ("Москва является столицей России", "russian"),
        ("Der Hund und die Katze sind nicht in dem Haus, weil sie mit den Kindern spielen", "german"),
        ("Le chien et le chat ne sont pas dans la maison parce que les enfants jouent avec eux", "french"),
        ("The dog and the cat are not in the house, for they play with the children", ""),
        ("kwargs argv stdout 1234", ""),
    ],
)
def test_another_language_is_seen_and_advised(tmp_path, text, language):
    found = hn.examine(Collection.from_lists({"a": text}, to=tmp_path / "c"))
    advised = [line for line in found["advice"] if "--language" in line]
    line = f"Import it with `hardneg import --language {language}`, so that BM25 finds the words of this language."
    assert advised == ([line] if language else [])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("北京是中国的首都。", True), ("กรุงเทพเป็นเมืองหลวงของไทย", True), ("The capital is Paris.", False)],
)
def test_answers_within_runs_of_letters_need_patterns(tmp_path, text, wanted):
    passages, judged = {"a": text, "b": text + text}, {"train": {"q": ["a"], "r": ["b"]}}
    answers = {"q": ["x"]}
    found = hn.examine(
        Collection.from_lists(passages, {"q": "1", "r": "2"}, judged, answers=answers, to=tmp_path / "c")
    )
    (advised,) = (line for line in found["advice"] if "labels=answers" in line)
    assert ("answer_mode=regex" in advised) == wanted


def test_large_collections_are_looked_at_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(examination, "MOST_PASSAGES", 3)
    monkeypatch.setattr(examination, "MOST_QUERIES", 2)
    found = hn.examine(world(tmp_path))
    assert (found["copies"]["passages_compared"], found["copies"]["queries_compared"]) == (3, 2)
    assert (found["leaks"][0]["compared_with"], found["leaks"][0]["of_all"]) == (2, False)
    assert "(of 2 that were drawn)" in " ".join(found["said"])
    assert found["copies"]["passages_equal"] == 1  # all of them, at any size


def test_tokens_of_a_model(tmp_path):
    c = world(tmp_path)
    model = tiny_model(tmp_path / "model", c)
    tokens = hn.examine(c, model, cache=tmp_path / "cache")["tokens"]
    assert tokens["passages"]["texts"] == 6
    assert tokens["passages"]["median"] <= tokens["passages"]["p95"] <= tokens["passages"]["longest"]
    assert 0 <= tokens["passages"]["share"] <= 1


@pytest.mark.parametrize(("n", "size", "most"), [(5, 100, 2000), (9**6, 9**6 * 500, 2000), (900, 900 << 20, 16)])
def test_few_long_texts_are_tokenised(n, size, most):
    assert examine_module.sample_size(n, size) == most


def test_of_long_texts_a_smaller_sample_is_tokenised(tmp_path, monkeypatch):
    monkeypatch.setattr(examine_module, "TOKENISED", 20 * 2_000)
    passages = [(f"p{i}", "pad " * 500) for i in range(60)]  # 2,000 bytes each
    c = Collection.from_lists(passages, {"q": "what"}, {"test": {"q": ["p1"]}}, to=tmp_path / "c")
    tokens = hn.examine(c, tiny_model(tmp_path / "model", c), cache=tmp_path / "cache")["tokens"]
    assert (
        "by a sample of 20" in tokens["passages"]["told"]
        or "none of a sample of 20 " in tokens["passages"]["told"]
    )


def test_options_that_the_advice_names_exist():
    options = {name: {one for p in c.params for one in p.opts} for name, c in commands().items()}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", inspect.getsource(examine_module)))
    assert named <= options["import"] | options["train warmup"]


def commands():
    import typer

    found = dict(typer.main.get_command(app).commands)
    return found | {f"train {name}": one for name, one in found["train"].commands.items()}


def test_the_command(tmp_path, capsys):
    world(tmp_path)
    assert run(["doctor", str(tmp_path / "c"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["said"][0] == "The collection has 6 passages and 6 queries."
    assert run(["doctor", str(tmp_path / "c")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("The collection has 6 passages")
    assert "\n\nAdvice\n- " in out
    assert run(["doctor", str(tmp_path / "nowhere")]) == 3
    assert run(["doctor", "--model", "m"]) == 2
    assert run(["doctor", "--data", str(tmp_path / "c")]) == 0
    assert capsys.readouterr().out == out
    assert run(["doctor", str(tmp_path / "c"), "--data", "d"]) == 2
    assert "DATA is given twice" in capsys.readouterr().err
