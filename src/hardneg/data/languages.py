"""The languages of passages that BM25 has an analyser for, by name and by ISO 639-1 code."""

from __future__ import annotations

from collections.abc import Mapping

from hardneg.config import nearest
from hardneg.errors import SettingsError

ENGLISH = "english"
# Words between blanks, with a stemmer of Snowball of the same name.
STEMMED: Mapping[str, str] = {
    "arabic": "ar",
    "armenian": "hy",
    "basque": "eu",
    "catalan": "ca",
    "czech": "cs",
    "danish": "da",
    "dutch": "nl",
    "english": "en",
    "esperanto": "eo",
    "estonian": "et",
    "finnish": "fi",
    "french": "fr",
    "german": "de",
    "greek": "el",
    "hindi": "hi",
    "hungarian": "hu",
    "indonesian": "id",
    "irish": "ga",
    "italian": "it",
    "lithuanian": "lt",
    "nepali": "ne",
    "norwegian": "no",
    "persian": "fa",
    "polish": "pl",
    "portuguese": "pt",
    "romanian": "ro",
    "russian": "ru",
    "serbian": "sr",
    "spanish": "es",
    "swedish": "sv",
    "tamil": "ta",
    "turkish": "tr",
    "yiddish": "yi",
}
# Scripts without blanks between words: pairs of neighbouring characters, as Lucene's analyser for CJK makes them.
BIGRAMS: Mapping[str, str] = {"chinese": "zh", "japanese": "ja", "korean": "ko", "thai": "th"}
# Languages whose words another package finds, and the extra of hardneg that installs this package.
SEGMENTED: Mapping[str, str] = {"chinese-words": "chinese", "japanese-words": "japanese"}
PLAIN = "plain"  # words between blanks as they are, of any other language
LANGUAGES = (*STEMMED, *BIGRAMS, *SEGMENTED, PLAIN)
_BY_CODE = {code: name for names in (STEMMED, BIGRAMS) for name, code in names.items()} | {"nb": "norwegian"}


def language_named(name: str) -> str:
    """The language of a name or ISO 639-1 code (``german``, ``de``, ``de-AT``).

    Raises
    ------
    SettingsError : there is no such language.
    """
    lowered = name.strip().lower().replace("_", "-")
    found = lowered if lowered in LANGUAGES else _BY_CODE.get(lowered) or _BY_CODE.get(lowered.split("-")[0])
    if found is None:
        fix = f"{nearest(lowered, [one for one in LANGUAGES if one != PLAIN])} ({PLAIN}: words without stems)"
        raise SettingsError("UNKNOWN_LANGUAGE", f"BM25 has no analyser for {name!r:.60}", fix)
    return found
