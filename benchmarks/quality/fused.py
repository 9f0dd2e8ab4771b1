"""The quality of each model fused with BM25; the weights of the fusion were chosen on dev."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quality.cells import BM25, MEASURES, UNTRAINED, Outcome
from quality.comparisons import Tested, by_seed, for_each, on_shared_seeds
from quality.groups import OURS, PLAINEST, Group, Known, contenders_of, of_contender, reference


def fused_of(known: Known, group: Group, contender: str) -> list[Outcome]:
    """The cells of a contender, or of the untrained model, whose runs were fused."""
    found = reference(known, group, contender) if contender == UNTRAINED else of_contender(known, group, contender)
    return [one for one in found if one.fused]


def tests_of_fusion(known: Known, groups: Sequence[Group]) -> list[Tested]:
    """All tests of fused runs, not corrected yet: the page corrects them together with those of models alone."""
    return [one for group in groups for one in tests_of_group(known, group) if one is not None]


def tests_of_group(known: Known, group: Group) -> Iterator[Tested | None]:
    """Tests of fused runs against their model, BM25 and the untrained model, fused; ours also against a peer."""
    before = [one.as_fused for one in fused_of(known, group, UNTRAINED)]
    plain = {seed: one.as_fused for seed, one in by_seed(fused_of(known, group, PLAINEST)).items()}
    for contender in (UNTRAINED, *contenders_of(known, group)):
        alone = by_seed(fused_of(known, group, contender))
        fused = {seed: one.as_fused for seed, one in alone.items()}
        against = {"the model alone": alone, "BM25 alone": for_each(fused, reference(known, group, BM25))}
        if contender != UNTRAINED:
            against[f"{UNTRAINED}, fused"] = for_each(fused, before)
        if contender.startswith(OURS):
            against[f"{PLAINEST}, fused"] = plain
        for other, cells in against.items():
            who = Tested(group, f"{contender}, fused", other, False, (), {})
            yield on_shared_seeds(who, fused, cells, MEASURES[0])
