"""BM25 in other languages: analysers by language, which decide an index's identity."""

import sys
import unicodedata

import numpy as np
import pytest
import Stemmer

import hardneg as hn
from hardneg.api.examine import language_advice
from hardneg.data.collection import Collection
from hardneg.data.examination import MIXED, looks_like
from hardneg.data.importing import import_collection
from hardneg.data.languages import LANGUAGES, STEMMED, language_named
from hardneg.errors import SettingsError
from hardneg.search.analysers import bigrams, facts_of, splitter_of, stopwords_of, tokenizer_of, words
from hardneg.search.bm25 import bm25_run, bm25_texts, open_bm25

GERMAN = ["Die Häuser stehen am Fluss", "Der Hund bellt", "Das Haus und der Garten"]
CHINESE = ["我爱北京天安门", "上海在中国的东部", "北京大学成立于1898年 PKU"]


def terms_of(language, text):
    tokenizer = tokenizer_of(language)
    list(tokenizer.streaming_tokenize([text], update_vocab=True, allow_empty=False))
    return list(tokenizer.get_vocab_dict())


def built(texts, to, queries=("?",), **options):
    passages = {str(i): text for i, text in enumerate(texts)}
    asked = {f"q{i}": text for i, text in enumerate(queries)}
    return Collection.from_lists(passages, asked, {"test": {i: ["0"] for i in asked}}, to=to, **options)


@pytest.mark.parametrize("language", [name for name in LANGUAGES if not name.endswith("-words")])
def test_every_language_has_an_analyser(language):
    if language in STEMMED and language not in Stemmer.algorithms():
        pytest.skip("the installed PyStemmer is too old")
    assert terms_of(language, "some words of GPU 1898")


def test_words_keep_their_marks_and_spellings_are_one():
    assert words("हिन्दी भाषा a") == ["हिन्दी", "भाषा"]
    assert words("cafe\u0301") == words("café") == ["café"]
    assert terms_of("german", "Die Häuser und das Haus") == ["haus"]
    assert terms_of("french", "les chevaux du cheval") == ["cheval"]
    assert terms_of("plain", "les chevaux du cheval") == ["les", "chevaux", "du", "cheval"]


@pytest.mark.parametrize("language", [name for name in LANGUAGES if not name.endswith("-words")])
def test_composed_and_decomposed_letters_are_the_same(language):
    text = "naïve Öffnung résumé가데 ガ Ёж İzmir"
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    assert composed != decomposed
    assert terms_of(language, composed) == terms_of(language, decomposed)


def test_turkish_letters_in_lower_case():
    assert terms_of("turkish", "İstanbul") == terms_of("turkish", "istanbul") == ["istanbul"]
    assert terms_of("turkish", "ISPARTA") == terms_of("turkish", "Isparta") == terms_of("turkish", "ısparta")
    assert terms_of("turkish", "DAHİ VE ile") == []  # stop words


def test_decomposed_korean_is_recognised(tmp_path):
    assert looks_like(built([unicodedata.normalize("NFD", "데이터베이스 검색")], tmp_path / "c")) == "korean"


def test_scripts_without_blanks_become_pairs_of_characters():
    assert bigrams("我爱北京 gpu-2") == ["我爱", "爱北", "北京", "gpu", "2"]
    assert bigrams("ﾃﾞｰﾀ") == bigrams("データ") == ["デー", "ータ"]
    assert bigrams("ＡＢＣ型") == ["abc", "型"]
    assert bigrams("한국어 책") == ["한국", "국어", "책"]
    assert bigrams("") == bigrams("、。!") == []


def test_a_mixture_of_scripts_is_told_and_no_language_is_advised(tmp_path):
    """A fifth of kana made a collection Japanese, whatever the others were."""
    english, japanese = "The tree stands here", "ねこはみずをのむ"
    mixed = [english] * 2 + [japanese] * 3
    assert looks_like(built(mixed, tmp_path / "m")) == MIXED
    assert looks_like(built([japanese, "東京は日本の首都です"], tmp_path / "j")) == "japanese"
    assert looks_like(built(CHINESE, tmp_path / "z")) == "chinese"
    assert [*language_advice({"looks_like": MIXED, "of_the_collection": "english"})] == []


def test_signs_that_stand_for_capitals_are_found_by_letters(tmp_path):
    """NFKC makes TEL of one sign; text was in lower case only before that."""
    for language in ("chinese", "japanese", "korean", "thai"):
        assert terms_of(language, "℡ ㎅") == terms_of(language, "tel kb") == ["tel", "kb"]
    c = built(["電話 ℡", "本", "机"], tmp_path / "c", language="ja")
    assert len(bm25_texts(c, ["TEL"], 2, tmp_path).passage_rows) == 1
    assert {facts_of(name)["analyser"] for name in ("chinese", "korean", "thai")} == {"3"}
    assert facts_of("german")["analyser"] == "2"


@pytest.mark.parametrize(("language", "package"), [("chinese-words", "jieba"), ("japanese-words", "fugashi")])
def test_segmenters_read_such_signs_in_lower_case(language, package):
    pytest.importorskip(package)
    assert splitter_of(language)("℡、㎅") == splitter_of(language)("tel、kb")


def test_chinese_finds_what_english_cannot(tmp_path):
    english, chinese = (built(CHINESE, tmp_path / name, language=name) for name in ("english", "chinese"))
    assert not len(bm25_texts(english, ["北京"], 3, tmp_path).passage_rows)
    assert sorted(bm25_texts(chinese, ["北京"], 3, tmp_path).passage_rows) == [0, 2]
    assert sorted(bm25_texts(english, ["北京"], 3, tmp_path, language="chinese").passage_rows) == [0, 2]
    assert bm25_texts(chinese, ["pku"], 3, tmp_path).passage_rows.tolist() == [2]


def test_stop_words_and_stems_are_the_languages(tmp_path):
    c = built(GERMAN, tmp_path / "c", queries=("die Haus",), language="de")
    assert sorted(bm25_run(c, np.zeros(1, np.int32), 3, tmp_path).passage_rows) == [0, 2]
    assert not len(bm25_texts(c, ["die"], 3, tmp_path).passage_rows)
    assert {"die", "und"} <= {*stopwords_of("german")}
    assert stopwords_of("finnish") == stopwords_of("chinese") == []


def test_a_language_is_part_of_a_collection_and_of_an_index(tmp_path):
    english, also, german = (
        built(GERMAN, tmp_path / name, **options)
        for name, options in (("a", {}), ("b", {"language": "en"}), ("c", {"language": "german"}))
    )
    assert english.digest == also.digest != german.digest
    assert (Collection.open(tmp_path / "c").language, Collection.open(tmp_path / "a").language) == (
        "german",
        "english",
    )
    open_bm25(english, tmp_path / "cache")
    open_bm25(english, tmp_path / "cache", "german")
    open_bm25(german, tmp_path / "cache")
    assert len(list((tmp_path / "cache" / "bm25").iterdir())) == 3


def test_the_identity_of_english():
    # what changes it builds all indexes again
    assert [*facts_of("english")] == ["stopwords", "stemmer", "form", "bm25s", "PyStemmer"]
    assert (facts_of("english")["stopwords"], facts_of("english")["stemmer"]) == ("english", "english")
    assert terms_of("english", "The RUNNING of trees and café a1 x") == ["run", "tree", "café", "a1"]


@pytest.mark.parametrize(
    ("name", "language"),
    [("German", "german"), ("de", "german"), ("de-AT", "german"), ("zh_TW", "chinese"), ("nb", "norwegian")],
)
def test_languages_by_name_and_by_code(name, language):
    assert language_named(name) == language


def test_other_names_are_refused_with_the_nearest(tmp_path):
    with pytest.raises(SettingsError, match=r"UNKNOWN_LANGUAGE: BM25 has no analyser for 'germn'; .*german"):
        language_named("germn")
    with pytest.raises(SettingsError, match=r"'klingon'; known are: arabic, .* \(plain: words without stems\)"):
        language_named("klingon")
    with pytest.raises(SettingsError, match="UNKNOWN_LANGUAGE"):
        built(GERMAN, tmp_path / "c", language="xx")
    (tmp_path / "c.csv").write_text("text\nein Haus\n")
    assert import_collection(str(tmp_path / "c.csv"), tmp_path / "d", language="de").language == "german"


def test_search_takes_a_language_with_bm25_only(tmp_path):
    c = built(CHINESE, tmp_path / "c")
    hits = hn.search_text(c, "北京", bm25=True, language="zh", cache=tmp_path, k=1)
    assert [hit["passage_id"] for hit in hits] == ["0"]
    with pytest.raises(SettingsError, match="BAD_SETTING: a language is given, but only BM25 uses one"):
        hn.search_text(c, "北京", model="m", language="zh", cache=tmp_path)


@pytest.mark.parametrize(("language", "package"), [("chinese-words", "jieba"), ("japanese-words", "fugashi")])
def test_a_segmenter_that_is_missing_is_one_line(tmp_path, monkeypatch, language, package):
    splitter = splitter_of.__globals__[{"jieba": "_chinese", "fugashi": "_japanese"}[package]]
    splitter.cache_clear()

    def missing(name):
        raise sys.modules["importlib.metadata"].PackageNotFoundError(name)

    monkeypatch.setattr("hardneg.search.analysers.version", missing)
    with pytest.raises(
        SettingsError, match=rf"PACKAGE_MISSING: {language} needs the package {package}; pip install"
    ):
        splitter_of(language)


@pytest.mark.filterwarnings("ignore")
def test_words_of_segmenters():
    pytest.importorskip("jieba")
    pytest.importorskip("fugashi")
    pytest.importorskip("unidic_lite")
    assert terms_of("chinese-words", "我爱北京天安门 GPU") == ["我", "爱", "北京", "天安", "天安门", "gpu"]
    assert terms_of("japanese-words", "東京大学で日本語を勉強しました") == [
        "東京",
        "大学",
        "日本",
        "語",
        "勉強",
        "する",
    ]
    assert set(facts_of("japanese-words")) >= {"language", "analyser", "fugashi", "unidic-lite"}


RUSSIAN = "anchor,positive\nчто пьют кошки,Кошка пила воду\nстарые дома,В городе стоит дом\n"
JAPANESE = "anchor,positive\n日本の首都,東京は日本の首都です\n猫は何を飲む,猫は水を飲む\n"


@pytest.mark.parametrize(
    ("language", "texts", "query", "first"),
    [("ru", RUSSIAN, "кошку", "Кошка пила воду"), ("japanese", JAPANESE, "首都", "東京は日本の首都です")],
)
def test_the_command_searches_a_file_in_another_language(hardneg, tmp_path, language, texts, query, first):
    (tmp_path / "pairs.csv").write_text(texts, "utf-8")
    asked = ("search", "--data", tmp_path / "pairs.csv", "--bm25", "--query", query)
    status, out, _ = hardneg(*asked, "--language", language)
    assert (status, out.splitlines()[2].strip()) == (0, first)
    status, out, _ = hardneg(*asked, "--language", "english")
    assert (status, out) == (
        0,
        f"query: {query}\n  nothing found: no passage has a word of the query. BM25 reads english\n",
    )


@pytest.mark.parametrize(
    ("query", "language", "why"),
    [
        ("水飲", "ja", "BM25 reads japanese in pairs of characters. It finds a single character only where"),
        ("、。", "ja", "the query has no word that BM25 looks for, as it reads japanese"),
        ("the", "en", "the query has no word that BM25 looks for, as it reads english"),
        ("xylophone", None, "BM25 reads english; --language names another language"),
    ],
)
def test_why_nothing_is_found(hardneg, tmp_path, query, language, why):
    """The language was said to be English, whichever was given."""
    (tmp_path / "pairs.csv").write_text(JAPANESE, "utf-8")
    asked = ["search", "--data", tmp_path / "pairs.csv", "--bm25", "--query", query]
    _, out, _ = hardneg(*asked, *(["--language", language] if language else []))
    assert why in out


@pytest.mark.parametrize(
    ("split", "text", "terms"),
    [
        (bigrams, "☀️今日は ❤️日本", ["今日", "日は", "日本"]),
        (bigrams, "ﾟ京語 มา1️⃣", ["京語", "มา", "1️⃣"]),
        (words, "❤️hallo die 1️⃣ Welt", ["hallo", "die", "1️⃣", "Welt"]),
        (words, "man\u0303ana x\u0302", ["mañana", "x\u0302"]),  # marks of letters stay
    ],
)
def test_a_mark_without_its_letter_begins_no_term(split, text, terms):
    assert split(text) == terms


def test_text_after_an_emoji_is_found(tmp_path):
    passages = {"a": "☀️今日は晴れです", "b": "明日は雨です"}
    judged = {"test": {"q": ["a"]}}
    c = Collection.from_lists(passages, {"q": "晴れ"}, judged, language="japanese", to=tmp_path / "c")
    assert list(hn.bm25(c)["q"]) == ["a"]
