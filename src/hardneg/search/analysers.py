"""Analysers: how BM25 makes terms of a text, by language. All that decides terms is in an index's identity.

English has words of two characters or more, English stop words, and Snowball's stems. Other languages with blanks
between words have their own stop words, where bm25s has a list, and stems. Chinese, Japanese, Korean and Thai
become pairs of neighbouring characters, as in Lucene's CJKAnalyzer, or the words that jieba or fugashi find. A
letter and its mark are one character (NFC), however they are written. Porter, "Snowball: A language for stemming
algorithms", 2001.
"""

from __future__ import annotations

import functools
import logging
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import regex

from hardneg.data.languages import BIGRAMS, ENGLISH, PLAIN, SEGMENTED, STEMMED
from hardneg.errors import SettingsError

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "chinese-words": ("jieba",),
    "japanese-words": ("fugashi", "unidic-lite"),
}
NO_CONTENT = frozenset({"助詞", "助動詞", "補助記号", "記号", "空白"})  # particles, auxiliaries, marks, blanks
TURKISH = "turkish"
ENGLISH_WORDS = re.compile(r"\b\w\w+\b")
# No term begins with a mark, for a mark without a letter, such as an emoji's variation selector, is of no word.
WORDS = regex.compile(r"[\w--\p{M}]\w+", regex.V1)
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}ー"
RUNS = regex.compile(rf"[{UNSPACED}][{UNSPACED}\p{{M}}]*|[\w--{UNSPACED}--\p{{M}}][\w--{UNSPACED}]*", regex.V1)
IS_UNSPACED = regex.compile(rf"[{UNSPACED}]")

Split = Callable[[str], Sequence[str]]


def facts_of(language: str) -> dict[str, str]:
    """What decides the terms of a language, with the versions of the packages, for an index's identity."""
    facts = {name: version(name) for name in ("bm25s", "PyStemmer")}
    if language == ENGLISH:
        return {"stopwords": ENGLISH, "stemmer": ENGLISH, "form": "NFC", **facts}
    facts |= {name: _installed(name, language) for name in PACKAGES.get(language, ())}
    newer = language == TURKISH or language in BIGRAMS or language in SEGMENTED
    return {"language": language, "analyser": "3" if newer else "2", **facts}


def tokenizer_of(language: str) -> Any:
    """A tokenizer of bm25s that makes the terms of a language.

    Raises
    ------
    SettingsError : a package that the language needs is missing or too old.
    """
    from bm25s.tokenization import Tokenizer

    if language == ENGLISH:
        import Stemmer

        return Tokenizer(stopwords="english", stemmer=Stemmer.Stemmer("english"), splitter=english_words)
    return Tokenizer(
        lower=language != TURKISH,  # its splitter does
        stopwords=stopwords_of(language),
        stemmer=_stemmer(language),
        splitter=splitter_of(language),
    )


def has_terms(language: str, text: str) -> bool:
    """Whether a text has a term in this language: a text of stop words or signs alone has none."""
    tokenizer = tokenizer_of(language)
    list(tokenizer.streaming_tokenize([text], update_vocab=True, allow_empty=False))
    return bool(tokenizer.get_vocab_dict())


def stopwords_of(language: str) -> list[str]:
    """The stop words of a language, as bm25s lists them; none where it has no list."""
    import bm25s.stopwords

    name = "EN" if language == ENGLISH else language.upper()
    return list(getattr(bm25s.stopwords, f"STOPWORDS_{name}", ())) if language in STEMMED else []


def _stemmer(language: str) -> Any:
    if language not in STEMMED:
        return None
    import Stemmer

    if language not in Stemmer.algorithms():
        what = f"the installed PyStemmer ({version('PyStemmer')}) has no stems for {language}"
        raise SettingsError("PACKAGE_MISSING", what, "pip install -U PyStemmer")
    return Stemmer.Stemmer(language)


# ---------------------------------------------------------------- words of a text


def splitter_of(language: str) -> Split:
    """The function that splits a text in lower case (Turkish: any) into words, or pairs of characters."""
    if language == TURKISH:
        return turkish_words
    if language in BIGRAMS:
        return bigrams
    if language == "chinese-words":
        return _chinese()
    if language == "japanese-words":
        return _japanese()
    assert language in STEMMED or language == PLAIN, language
    return words


def english_words(text: str) -> list[str]:
    """The words of two characters or more; other signs, and marks that belong to no letter, part words."""
    return ENGLISH_WORDS.findall(unicodedata.normalize("NFC", text))


def turkish_words(text: str) -> list[str]:
    """The words of :func:`words` in lower case as Turkish has it: I becomes ı, and İ becomes i."""
    return words(unicodedata.normalize("NFC", text).replace("İ", "i").replace("I", "ı").lower())


def words(text: str) -> list[str]:
    """The words of two characters or more, marks of vowels and tones included."""
    return WORDS.findall(unicodedata.normalize("NFC", text))


def bigrams(text: str) -> list[str]:
    """The pairs of neighbouring characters of each run without blanks, and the words in other scripts.

    A run of one character is a term by itself. Full-width letters and half-width kana become the usual ones.
    """
    terms: list[str] = []
    for run in RUNS.findall(_plain(text)):
        if len(run) > 1 and IS_UNSPACED.match(run):
            terms += [run[i : i + 2] for i in range(len(run) - 1)]
        else:
            terms.append(run)
    return terms


def _plain(text: str) -> str:
    """The text in form NFKC and lower case; NFKC makes capitals of one sign, as TEL of ℡."""
    return unicodedata.normalize("NFKC", text).lower()


def _installed(package: str, language: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError as fault:
        what = f"{language} needs the package {package}"
        fix = f"pip install 'hardneg[{SEGMENTED[language]}]', or use {SEGMENTED[language]} (pairs of characters)"
        raise SettingsError("PACKAGE_MISSING", what, fix) from fault


@functools.cache
def _chinese() -> Split:
    _installed("jieba", "chinese-words")
    import jieba

    jieba.setLogLevel(logging.WARNING)
    segmenter = jieba.Tokenizer()

    def split(text: str) -> list[str]:
        found = segmenter.cut_for_search(_plain(text))
        return [word for word in found if regex.search(r"\w", word)]

    return split


@functools.cache
def _japanese() -> Split:
    for package in PACKAGES["japanese-words"]:
        _installed(package, "japanese-words")
    import fugashi

    tagger = fugashi.Tagger()

    def split(text: str) -> list[str]:
        found = tagger(_plain(text))
        kept = (
            word for word in found if word.feature.pos1 not in NO_CONTENT and regex.search(r"\w", word.surface)
        )
        return [word.feature.orthBase or word.surface for word in kept]

    return split
