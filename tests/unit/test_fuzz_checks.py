"""The checks of ``faults.fuzz`` fail when an import changes or loses what the files hold."""

import copy
from types import SimpleNamespace

import pytest

from faults.fuzz import (
    DPR,
    DPR_INLINE,
    TEVATRON,
    TEVATRON_INLINE,
    Failure,
    check_dpr,
    check_dpr_inline,
    check_tevatron,
    check_tevatron_inline,
    files,
)
from hardneg.data.importing import import_collection

FORMATS = {
    "dpr": ("dpr", DPR, check_dpr),
    "dpr-inline": ("dpr", DPR_INLINE, check_dpr_inline),
    "tevatron": ("tevatron", TEVATRON, check_tevatron),
    "tevatron-inline": ("tevatron", TEVATRON_INLINE, check_tevatron_inline),
}


def other_text(seen):
    seen.texts[1] = "a text of no file"


def lost_text(seen):
    seen.texts[1] = seen.texts[0]


def other_query(seen):
    seen.query_texts[0] = "a question of no file"


def lost_judgement(seen):
    split = next(split for split in seen.facts["splits"].values() if split["judgements"])
    split["judgements"] -= 1


@pytest.fixture(params=FORMATS)
def imported(request, tmp_path):
    """What a sound input is as a collection, in lists that can be changed, and the check of its format."""
    name, contents, check = FORMATS[request.param]
    files(contents)(folder := tmp_path / "in")
    made = import_collection(f"{name}:{folder}", tmp_path / "made")
    columns = {column: list(getattr(made, column)) for column in ("titles", "texts", "query_texts")}
    return SimpleNamespace(facts=copy.deepcopy(dict(made.facts)), **columns), folder, check


def test_a_sound_import_passes(imported):
    seen, folder, check = imported
    check(seen, folder)


@pytest.mark.parametrize("spoil", [other_text, lost_text, other_query, lost_judgement], ids=lambda f: f.__name__)
def test_a_spoilt_import_fails(imported, spoil):
    seen, folder, check = imported
    spoil(seen)
    with pytest.raises(Failure):
        check(seen, folder)
