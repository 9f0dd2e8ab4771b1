"""What the experiments of a study came to: a line of figures each, which lasts longer than their folders."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from harness import Step, Study, Values, called

import hardneg as hn


@dataclass(frozen=True)
class Outcome:
    """One experiment.

    ``settings`` with the collection and the model; ``test``, the measure by state; ``forgetting``, shares of the
    training queries episode by episode; ``seconds`` by stage, on so many ``threads``; ``ranks`` of the first
    relevant passage of every test query, in order of the queries' ids, as far as the measure looks: 0 is farther.
    """

    experiment: str
    settings: dict[str, object]
    test: dict[str, float]
    forgetting: list[dict[str, float]]
    threads: int
    seconds: dict[str, float]
    ranks: list[int]

    @property
    def values(self) -> Values:
        """The reciprocal rank of every test query."""
        ranks = np.array(self.ranks, np.float64)
        return np.divide(1, ranks, out=np.zeros(len(ranks)), where=ranks > 0)


def settings_of(study: Study, step: Step) -> dict[str, object]:
    """All that decides an experiment's figures."""
    return {"data": called(study.data), "model": called(study.model), **study.common, **step.settings}


class Outcomes(Mapping[str, Outcome]):
    """Those of finished experiments: in the study's folder, or kept in a file from before.

    Parameters
    ----------
    study : whose folder is looked into.
    steps : the experiments; what others came to is not told.
    measure : a reciprocal rank, such as RR@10.
    kept : JSON lines. A line of other settings than the step's does not count.
    """

    def __init__(self, study: Study, steps: Mapping[str, Step], measure: str, kept: Path | None = None) -> None:
        self._study, self._steps, self._measure = study, steps, measure
        self._lines = {one.experiment: one for one in _read(kept)}
        self._kept = {name: one for name, one in self._lines.items() if self._is_ours(one)}
        self._found = cache(self._find)

    def __getitem__(self, name: str) -> Outcome:
        if (found := self._found(name)) is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._steps if self._found(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def is_kept(self, name: str) -> bool:
        """Whether an experiment need not be executed."""
        return name in self._kept

    def save(self, path: Path) -> None:
        """Keep them, with what the file that was read has of other experiments."""
        kept = {**self._lines, **self}
        rows = [json.dumps(asdict(kept[name]), ensure_ascii=False) for name in sorted(kept)]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(row + "\n" for row in rows))

    def _is_ours(self, one: Outcome) -> bool:
        step = self._steps.get(one.experiment)
        return step is not None and one.settings == settings_of(self._study, step)

    def _find(self, name: str) -> Outcome | None:
        if name not in self._steps:
            return None
        results = self._study.results(name)
        if results is None:
            return self._kept.get(name)
        self._check(name)
        return Outcome(
            name,
            settings_of(self._study, self._steps[name]),
            {state: found[self._measure] for state, found in results["test"].items()},
            [{share: one[share] for share in ("forgotten", "learned")} for one in results["forgetting"]],
            self._study.threads,
            {stage: round(seconds, 1) for stage, seconds in self._study.seconds(name).items()},
            [round(1 / value) if value else 0 for value in self._final_values(name)],
        )

    def _check(self, name: str) -> None:
        """Refuse a folder of other settings: its figures would be told as those of the step."""
        file, step = self._study.folder / name / "settings.json", self._steps[name]
        was = json.loads(file.read_text())["result_settings"]
        for key, value in {**self._study.common, **step.settings}.items():
            if was.get(key, value) != value:
                raise SystemExit(f"{file}: made with {key} = {was[key]}, not {value}; give another --out")

    def _final_values(self, name: str) -> list[float]:
        run, data = self._study.folder / name / "runs/final.test.trec.gz", self._study.data
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "values.jsonl"
            cache = self._study.cache()
            hn.evaluate(run, data=data, split="test", measures=self._measure, per_query=file, cache=cache)
            rows = [json.loads(line) for line in file.read_text().splitlines()]
        return [row[self._measure] for row in sorted(rows, key=lambda row: row["query_id"])]


def _read(path: Path | None) -> list[Outcome]:
    if path is None or not path.is_file():
        return []
    return [Outcome(**json.loads(line)) for line in path.read_text().splitlines()]
