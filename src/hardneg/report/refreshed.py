"""Words of figures for recipes that mine anew within one episode: they have refreshes, and no momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hardneg.report.drawing import Figure
from hardneg.report.opened import Opened

REFRESHED: Mapping[str, Mapping[str, Any]] = {
    "composition": {
        "says": "Mined candidates by the list in which their query met them first (ANCE-Tele, Figures 5 and 10):"
        " BM25's, the query candidates of a refresh (Q0, Q1, …) or its lookahead candidates (L0, L1, …). Refresh 0"
        " mined before the first step; `adore` has states on the way (step-4, …), too. Where BM25's lists were"
        " kept of a sample of the queries, all shares are of these queries. `other` was first met in a pool, such"
        " as random draws."
    },
    "composition_of_pools": {
        "says": "Training negatives by the list in which their query met them first (ANCE-Tele, Figure 9). Where"
        " the candidates' lists are gone, the source that drew a negative stands for them. `other` was first met"
        " in a pool, such as random draws."
    },
    "momentum": {"title": "Pools", "says": "The size of the pool of each refresh."},
    "new_negatives": {
        "says": "Candidates that neither BM25's list (where it was kept) nor a refresh had before, and how many of"
        " them were neighbours of the positive (d+) in the refresh before: lookahead could have mined these a"
        " refresh earlier (ANCE-Tele, Figures 7 and 10)."
    },
    "swing": {
        "says": "Candidates that are mined in one refresh, absent in the next and mined again in the third"
        " (ANCE-Tele, Figure 6). Class A starts in the first refresh, class B in the second. Pools are shown"
        " apart: random draws also add and remove passages."
    },
    "swing_cases": {
        "says": "Places in each refresh's candidates, of the queries that show it best (ANCE-Tele, Table 10)."
        " Class B swings one refresh later than class A."
    },
}


def worded(figure: Figure[Opened], opened: Opened) -> Figure[Opened]:
    """The figure in the words that fit how the experiment mines."""
    return replace(figure, **REFRESHED.get(figure.name, {})) if opened.unit == "refresh" else figure
