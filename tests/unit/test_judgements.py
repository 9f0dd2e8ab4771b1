"""Judgements of people: their file, its faults, and their effect on positives and qrels."""

import numpy as np
import pytest

from hardneg.data.ids import Vocabulary
from hardneg.data.judgements import JudgedIds, Judgements, read_judgements, save_judgements
from hardneg.errors import InputError
from hardneg.records import Qrels
from worlds.tiny_records import positives_of

QUERIES, PASSAGES = Vocabulary(f"q{i}" for i in range(4)), Vocabulary(f"d{i}" for i in range(9))
HEADER = "query-id\tpassage-id\tlabel\n"


def judged(tmp_path, *lines):
    path = tmp_path / "judgements.tsv"
    path.write_text(HEADER + "".join("\t".join(line.split()) + "\n" for line in lines))
    return read_judgements(path).known(QUERIES, PASSAGES)


def test_a_file_of_judgements_is_read_whatever_its_order(tmp_path):
    found = judged(tmp_path, "q1 d2 negative", "q0 d3 relevant", "q0 d1 positive", "q0 d3 relevant")
    assert list(zip(found.query_rows.tolist(), found.passage_rows.tolist(), strict=True)) == [
        (0, 1),
        (0, 3),
        (1, 2),
    ]
    assert found.counts() == {"positive": 1, "relevant": 1, "negative": 1}
    other = judged(tmp_path, "q0 d1 positive", "q0 d3 relevant", "q1 d2 negative")
    assert found.digest == other.digest != judged(tmp_path, "q0 d1 positive").digest
    save_judgements(tmp_path / "kept.tsv", found)
    assert read_judgements(tmp_path / "kept.tsv").known(QUERIES, PASSAGES).digest == found.digest


def test_a_table_of_the_audit_with_a_label_is_read(tmp_path):
    path = tmp_path / "audited.tsv"
    path.write_text("place\tquery_id\tpassage_id\tsuspicion\tlabel\n1\tq0\td1\t0.9\tpositive\n")
    assert read_judgements(path).known(QUERIES, PASSAGES).digest == judged(tmp_path, "q0 d1 positive").digest
    path.write_text("query_id\tquery-id\tpassage_id\tlabel\nq0\tq0\td1\tpositive\n")
    with pytest.raises(InputError, match="the header has column 'query-id' twice"):
        read_judgements(path)


def test_later_judgements_override_earlier_ones_and_lose_none(tmp_path):
    early = judged(tmp_path, "q0 d1 positive", "q2 d3 relevant")
    late = judged(tmp_path, "q0 d1 negative", "q1 d8 unsure")
    both = judged(tmp_path, "q0 d1 negative", "q1 d8 unsure", "q2 d3 relevant")
    found = early.overridden_by(late)
    assert (found.digest, found.counts()) == (both.digest, both.counts())
    assert found.query_rows.tolist() == both.query_rows.tolist()
    assert found.passage_rows.tolist() == both.passage_rows.tolist()
    assert found.labels.tolist() == both.labels.tolist()


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("q0\td1\tpositive\n", 1, "NO_HEADER"),
        (HEADER + "q0\td1\tpositive\nq0\td2\n", 3, "WRONG_COLUMNS"),
        (HEADER + "q0\td1\tyes\n", 2, "BAD_LABEL"),
        (HEADER + "q0\t\tpositive\n", 2, "EMPTY_ID"),
        (HEADER + "q0\td1\tpositive\nq0\td1\tnegative\n", 3, "CONFLICTING_LABELS"),
        (HEADER + "q0\td1\tpositive\nq0\td77\tpositive\n", 3, "UNKNOWN_ID"),
        (HEADER + "q9\td1\tpositive\n", 2, "UNKNOWN_ID"),
        (HEADER, None, "EMPTY_FILE"),
        ("query-id\tpassage-id\tlabel\tlabel\nq0\td1\tpositive\tnegative\n", 1, "NO_HEADER"),
    ],
)
def test_a_faulty_line_is_named(tmp_path, text, line, code):
    path = tmp_path / "judgements.tsv"
    path.write_text(text)
    with pytest.raises(InputError) as fault:
        read_judgements(path).known(QUERIES, PASSAGES)
    assert (fault.value.code, fault.value.line, fault.value.path) == (code, line, path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the first line is empty"),
        (
            HEADER + "q0\td1\tpositive\n\n",
            "1 tab-separated column where 3 are expected; remove the line if it is empty",
        ),
        ("label\t" + HEADER + "positive\tq0\td1\tnegative\n", "the header has column 'label' twice"),
        (HEADER + "q9\td1\tpositive\nq9\td2\tpositive\n", "1 query id not in the collection: 'q9'"),
    ],
)
def test_a_file_that_a_person_made_by_hand_is_told_what_is_wrong(tmp_path, text, told):
    path = tmp_path / "judgements.tsv"
    path.write_text(text)
    with pytest.raises(InputError) as fault:
        read_judgements(path).known(QUERIES, PASSAGES)
    assert told in str(fault.value)


def test_a_passage_with_the_text_of_a_relevant_one_is_relevant_unless_people_say_no(tmp_path):
    found = judged(tmp_path, "q0 d1 relevant", "q0 d3 negative", "q1 d4 positive", "q2 d6 unsure")
    texts = np.array([9, 1, 1, 1, 4, 4, 6, 6, 8], np.uint64)  # d1 to d3 have one text, as have d4, d5 and d6, d7
    queries, passages = np.divmod(np.arange(4 * len(texts), dtype=np.int32), np.int32(len(texts)))
    relevant = np.flatnonzero(found.are_relevant(queries, passages, texts))
    assert [divmod(one, len(texts)) for one in relevant.tolist()] == [(0, 1), (0, 2), (1, 4), (1, 5)]


def test_positives_and_negatives_of_people_win_over_those_of_the_collection(tmp_path):
    found = judged(
        tmp_path, "q0 d4 positive", "q0 d5 relevant", "q1 d2 negative", "q1 d1 positive", "q3 d0 positive"
    )
    known = positives_of([[3, 1], [2, 6], [7]])
    amended = found.amend(known)
    assert [amended.of(i).tolist() for i in range(3)] == [[3, 1, 4], [6, 1], [7]]
    whole = found.with_relevant(amended)
    assert [whole.of(i).tolist() for i in range(3)] == [[3, 1, 4, 5], [6, 1], [7]]
    assert found.are(np.array([0, 1, 0]), np.array([5, 2, 3]), "relevant").tolist() == [True, False, False]


def test_judgements_extend_the_qrels_of_a_split(tmp_path):
    found = judged(
        tmp_path,
        "q0 d4 positive",
        "q0 d5 negative",
        "q0 d1 relevant",
        "q1 d2 negative",
        "q1 d3 unsure",
        "q3 d0 positive",
    )
    qrels = Qrels(
        np.array([0, 1], np.int32),
        np.array([0, 2, 3]),
        np.array([1, 8, 2], np.int32),
        np.array([3, 0, 1], np.int32),
    )
    extended = found.extend(qrels)
    assert extended.offsets.tolist() == [0, 4, 5]  # q3 is not of the split
    of_first = dict(zip(extended.passage_rows[:4].tolist(), extended.grades[:4].tolist(), strict=True))
    assert of_first == {8: 0, 1: 3, 4: 1, 5: 0}
    assert (extended.passage_rows[4], extended.grades[4]) == (2, 0)


def test_without_any_judged_pair_nothing_changes(tmp_path):
    none = Judgements(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint8), "")
    known = positives_of([[3, 1], []])
    assert none.amend(known).passage_rows.tolist() == [3, 1]
    qrels = Qrels(np.array([0], np.int32), np.array([0, 0]), np.zeros(0, np.int32), np.zeros(0, np.int32))
    assert none.extend(qrels).offsets.tolist() == [0, 0]
    some = judged(tmp_path, "q0 d4 positive")
    assert some.extend(qrels).passage_rows.tolist() == [4]


def test_ids_with_other_line_breaks_are_put_together(tmp_path):
    queries, passages = Vocabulary(["q\u20281"]), Vocabulary(["d\u00850", "d\u00851"])
    early, late = (
        JudgedIds(tmp_path / "file", {("q\u20281", f"d\u0085{n}"): ("relevant", 2)}).known(queries, passages)
        for n in range(2)
    )
    assert early.overridden_by(late).counts() == {"relevant": 2}
