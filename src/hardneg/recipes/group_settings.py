"""The settings that recipes share which mine negatives, and which train a retriever on groups of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveFloat

from hardneg.errors import SettingsError
from hardneg.negatives.candidates import Filters
from hardneg.recipes.settings import Episode, TrainingSettings
from hardneg.shown import as_set
from hardneg.training.objectives import WITH_MARGIN, DistillName, GroupLoss, TaughtLoss, distilled

BOUNDS = ("max_score", "absolute_margin", "relative_margin", "top")


class MiningSettings(TrainingSettings):
    """Settings of the recipes that mine negatives."""

    # bounds on what is mined, see Filters
    max_score: float | None = None
    absolute_margin: float | None = None
    relative_margin: float | None = None
    top: int | None = Field(None, ge=1)  # of the candidates within the bounds, so many with the highest scores
    # whose scores the bounds compare: those of the model that mines, of the starting model, or of --filter-by
    filter_by: Literal["miner", "start", "given"] = "miner"

    def check(self) -> None:
        """Refuse also a guide if no bound compares its scores."""
        super().check()
        if self.filter_by != "miner" and not self.bounds:
            what = f"filter_by = {self.filter_by} has no effect without a bound on scores"
            raise SettingsError("NO_BOUND", what, f"set one of {', '.join(BOUNDS)}, or leave filter_by out")

    def with_frozen(self, filter_by: bool, teacher: bool) -> MiningSettings:
        """The settings of an experiment, given which frozen models it has; raises if they do not fit."""
        super().with_frozen(False, teacher)
        if not filter_by and self.filter_by == "given":
            what = "filter_by = given, but no model to filter by is given"
            raise SettingsError("NO_MODEL", what, "give --filter-by M, or leave filter_by out")
        chosen = self.model_copy(update={"filter_by": "given"}) if filter_by else self
        chosen.check()
        return chosen

    def check_draws(self, name: str, drawn: int, bounds: Sequence[str], sources: int = 1) -> None:
        """Refuse to draw more negatives of a query in a step than its list can hold: some would be drawn twice.

        Parameters
        ----------
        name, drawn : the setting that says how many are drawn, and how many these are.
        bounds : settings that bound what a source gives to the list; one that is None bounds nothing.
        sources : the number of sources of the list.
        """
        for bound in bounds:
            most = getattr(self, bound)
            if most is not None and drawn > most * sources:
                what = f"{name} = {drawn} is more than {bound} = {most}"
                what += f" of each of {sources} sources" if sources > 1 else ""
                raise SettingsError("BAD_SETTING", what, f"draw fewer, or set a higher {bound}")

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds that are set."""
        known = {name: getattr(self, name) for name in BOUNDS}
        return {name: value for name, value in known.items() if value is not None}

    @property
    def keeps_start(self) -> bool:
        """Whether vectors of all texts by the model that training starts from are needed throughout training."""
        return self.filter_by == "start"

    @property
    def filters(self) -> Filters:
        """Which candidates may become negatives."""
        return Filters(
            max_score=self.max_score,
            absolute_margin=self.absolute_margin,
            relative_margin=self.relative_margin,
            top=self.top,
        )


class GroupSettings(MiningSettings):
    """Settings of the recipes that train a retriever on groups of a positive and mined negatives.

    Attributes
    ----------
    given_alone : the setting with which training has the negatives of a given pool alone.
    """

    given_alone: ClassVar[str] = ""

    # false negatives of a step: masked if the starting model scores them above the positive less the margin
    guide_mask: bool = False
    guide_margin: float = 0.0

    # distillation of a teacher's scores (--teacher, or those of a scored pool) over a query's own group
    distill: DistillName | None = None
    distill_weight: float = Field(0.5, gt=0, le=1)  # of the teacher's term; the recipe's own loss has the rest
    distill_scale: float | None = Field(None, gt=0)  # from scores to logits in that term; None: the model's
    teacher_temperature: float = Field(1.0, gt=0)

    def check(self) -> None:
        """Refuse also a guide's margin if the mask is off, and what only distilling reads."""
        super().check()
        if self.guide_margin and not self.guide_mask:
            what = f"guide_margin = {self.guide_margin} with guide_mask = false, which masks nothing"
            raise SettingsError("BAD_SETTING", what, "set guide_mask = true, or leave it out")
        if self.distill is None:
            why = "with distill = none, where nothing is distilled"
            self.check_idle(why, "distill_weight", "distill_scale", "teacher_temperature")

    @property
    def keeps_start(self) -> bool:
        """Whether vectors of all texts by the model that training starts from are needed throughout training."""
        return self.guide_mask or super().keeps_start

    def with_frozen(self, filter_by: bool, teacher: bool) -> MiningSettings:
        """The settings of an experiment, given which frozen models it has; raises for a teacher without a loss."""
        if teacher and self.distill is None:
            what = "a teacher is given, but distill is none"
            raise SettingsError("BAD_SETTING", what, "set distill = kl or margin_mse, or leave --teacher out")
        return super().with_frozen(filter_by, False)

    def check_margin(self, loss: str) -> None:
        """Refuse the setting ``margin``, which some recipes have, with a loss that uses none."""
        if loss not in WITH_MARGIN:
            which = " or ".join(sorted(WITH_MARGIN))
            self.check_idle(f"with loss = {loss}, and only {which} has a margin", "margin")

    def check_taught(self, groups: str) -> None:
        """Refuse a teacher if all groups are of a positive alone, over which its term is 0 whatever the model is.

        Parameters
        ----------
        groups : the setting that makes the groups so, with its value.
        """
        if self.distill is not None:
            what = f"distill = {self.distill} with {groups}: no query has a negative of its own to learn from"
            raise SettingsError("BAD_SETTING", what, "have mined negatives, or leave it out")

    @property
    def unscored(self) -> bool:
        """Whether training has negatives besides those of a given pool, which then have no stored scores."""
        return False

    def distilled(self, loss: GroupLoss, scale: float) -> GroupLoss | TaughtLoss:
        """The loss of a step, with the teacher's term if there is one; ``scale`` is the model's."""
        if self.distill is None:
            return loss
        return distilled(
            loss,
            self.distill,
            weight=self.distill_weight,
            scale=self.distill_scale or scale,
            temperature=self.teacher_temperature,
        )


class TrialSettings(GroupSettings):
    """Settings of the recipes that can try several learning rates before they train.

    Each rate makes the first steps of the whole schedule in the first episode. Training goes on with the rate
    whose state is best on dev then.
    """

    learning_rate: PositiveFloat | list[PositiveFloat] = 5e-6  # type: ignore[assignment]
    trial_share: float = Field(0.25, gt=0, le=1)  # of the schedule, for each of several rates

    def check(self) -> None:
        """Refuse also no learning rate, one that stands twice, and a trial's length where none is tried."""
        super().check()
        if not self.rates:
            raise SettingsError("BAD_SETTING", "learning_rate = [], which has no rate", "give one, or several")
        if len(set(self.rates)) < len(self.rates):
            what = f"learning_rate = {as_set(self.rates)}: a rate stands twice"
            raise SettingsError("BAD_SETTING", what, "name each once")
        if len(self.rates) == 1:
            self.check_idle("with one learning rate, which is not tried", "trial_share")

    @property
    def rates(self) -> list[float]:
        """The learning rates that are tried, in order; a single one is no trial."""
        return self.learning_rate if isinstance(self.learning_rate, list) else [self.learning_rate]

    def trial_steps(self, episode: Episode) -> int:
        """The steps of an episode that each of several learning rates is tried for; 0: none is tried in it."""
        if len(self.rates) == 1 or episode.episode != self.first_episode:
            return 0
        return min(max(int(self.trial_share * episode.scheduled + 0.5), 1), episode.steps)

    def result_values(self) -> dict[str, Any]:
        """The settings that decide the result; the length of trials only where rates are tried."""
        values = super().result_values()
        if len(self.rates) == 1:
            values |= {"learning_rate": self.rates[0]}
            del values["trial_share"]
        return values
