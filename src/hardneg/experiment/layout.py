"""All paths of an experiment's folder; no other module spells one out.

A path is a function of an episode, a step or a version, so a reader finds what a recipe wrote without knowing the
recipe. The module loads no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hardneg.errors import ArtifactError
from hardneg.storage.lease import LOCK

# Files of the folder itself.
SETTINGS = "settings.json"
RESULTS = "results.json"
JUDGEMENTS = "judgements.tsv"
SEAL = "seal.json"
METRICS = "metrics.jsonl"
MARGINS = "margins.tsv"
STATES = "states.jsonl"
VERSION_LOG = "versions.jsonl"  # from which step on each version of the negatives was in force
TIMING = "timing.jsonl"
LOG = "log.txt"
PLACES = "places.json"  # telemetry: no digest covers it, because it holds an absolute path
CURVE = "learning_curve.png"
TIMELINE = "timeline.png"
REPORT = "report.html"

# Folders.
MODEL = "model"  # the model that is the result
LAST_MODEL = "last/model"  # the model after the last step, if another one may be the result
RANKER = "ranker"  # the ranker that is trained together with the model
FIRST_RANKER = "first-ranker"  # the ranker that both begin with, if it was trained here
CACHE = "cache"
EPISODES = "episodes"
ROLES = "roles"
RUNS = "runs"  # in the folder of a state: its runs; in the experiment's folder: runs written for people
EXPORTS, CHECKPOINT = "models", "checkpoint"
GEOMETRY = "geometry"  # in the folder of a state's runs, and the kind of its manifest
FIGURES = "figures"  # of the report: pictures, and their numbers
KEPT_FILES = frozenset(
    {SETTINGS, RESULTS, JUDGEMENTS, SEAL, METRICS, MARGINS, STATES, VERSION_LOG, TIMING, LOG, PLACES}
)
PASSING = frozenset({CACHE, EXPORTS, CHECKPOINT, ROLES})  # what an experiment may delete again
BEFORE_SETTINGS = frozenset({LOG, CACHE, ROLES, JUDGEMENTS})  # what may exist before the settings do


STORE = re.compile(r"[0-9a-f]{16,64}(\.lock)?")  # the name of a store in a cache, a digest, or of its lock


def is_store(place: Path) -> bool:
    """Whether something in a cache is hardneg's own: its name says so, and it is no link."""
    return STORE.fullmatch(place.name) is not None and not place.is_symlink()


@dataclass(frozen=True)
class EpisodeFolder:
    """The paths of what an episode leaves in the folder."""

    path: Path

    @property
    def model(self) -> Path:
        """The model that the next episode builds on."""
        return self.path / "model"

    @property
    def negatives(self) -> Path:
        """The pool of the episode, or the folder of its versions (:meth:`version`)."""
        return self.path / "negatives"

    @property
    def runs(self) -> Path:
        """The runs of the state that the episode begins with."""
        return self.path / RUNS

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints of the episode's stage."""
        return self.path / CHECKPOINT

    def version(self, number: int) -> Path:
        """A pool that was mined within the episode."""
        return version_in(self.negatives, number)

    def version_runs(self, number: int) -> Path:
        """The runs that this pool was mined from."""
        return self.path / f"{RUNS}-v{number:04d}"

    def mined_runs(self) -> list[tuple[int, Path]]:
        """(number, place) of the runs of every pool that was mined within the episode, in order."""
        found = [path for path in self.path.glob(f"{RUNS}-v*") if re.fullmatch(rf"{RUNS}-v\d+", path.name)]
        return sorted((number_of(path), path) for path in found)


@dataclass(frozen=True)
class StateFolder:
    """The paths of what a state in the course of training leaves in the folder."""

    path: Path

    @property
    def model(self) -> Path:
        """The weights of the state, if they are kept."""
        return self.path / "model"

    @property
    def runs(self) -> Path:
        """The folder of the state's runs."""
        return self.path / RUNS

    @property
    def record(self) -> Path:
        """The record of what was measured of the state."""
        return self.path / "measured"


@dataclass(frozen=True)
class TrialFolder:
    """The paths of what the trial of a learning rate leaves in the folder."""

    path: Path

    @property
    def metrics(self) -> Path:
        """A row for every step, until training goes on."""
        return self.path / METRICS

    @property
    def margins(self) -> Path:
        """A line for every negative of its steps, until training goes on."""
        return self.path / MARGINS

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints, until training goes on."""
        return self.path / CHECKPOINT

    @property
    def runs(self) -> Path:
        """The folder of the runs of the state that it ends with."""
        return self.path / RUNS

    @property
    def record(self) -> Path:
        """The record of what was measured of this state."""
        return self.path / "measured"


@dataclass(frozen=True)
class Layout:
    """The paths of the experiment at ``path``."""

    path: Path

    def __truediv__(self, name: str | Path) -> Path:
        return self.path / name

    def relative(self, place: Path) -> str:
        """A path of the experiment as its files name it, wherever the experiment lies."""
        return place.relative_to(self.path).as_posix()

    # ------------------------------------------------------------ files and folders of the whole

    @property
    def settings(self) -> Path:
        """The settings and inputs that identify the experiment."""
        return self.path / SETTINGS

    @property
    def results(self) -> Path:
        """The results of a finished experiment."""
        return self.path / RESULTS

    @property
    def judgements(self) -> Path:
        """The judgements of people about its training queries, if it was given any."""
        return self.path / JUDGEMENTS

    @property
    def seal(self) -> Path:
        """The seal: the manifest of a finished experiment."""
        return self.path / SEAL

    @property
    def metrics(self) -> Path:
        """A row for every logged step."""
        return self.path / METRICS

    @property
    def margins(self) -> Path:
        """A line for every negative that a step was trained with."""
        return self.path / MARGINS

    @property
    def states(self) -> Path:
        """A line for every state of the model."""
        return self.path / STATES

    @property
    def version_log(self) -> Path:
        """From which step on each version of the negatives was in force."""
        return self.path / VERSION_LOG

    @property
    def timing(self) -> Path:
        """The time that each stage took."""
        return self.path / TIMING

    @property
    def lock(self) -> Path:
        """The lock that the process working here holds."""
        return self.path / LOCK

    @property
    def log(self) -> Path:
        """The log of the library's messages."""
        return self.path / LOG

    @property
    def places(self) -> Path:
        """The file that says where the collection lies."""
        return self.path / PLACES

    @property
    def curve(self) -> Path:
        """The picture of the learning curve."""
        return self.path / CURVE

    @property
    def timeline(self) -> Path:
        """The picture of when trainer and inferencer worked."""
        return self.path / TIMELINE

    @property
    def report(self) -> Path:
        """The page that shows what training did."""
        return self.path / REPORT

    @property
    def figures(self) -> Path:
        """The folder of the report's pictures and their numbers."""
        return self.path / FIGURES

    @property
    def tensorboard(self) -> Path:
        """The metrics for TensorBoard."""
        return self.path / "tensorboard"

    @property
    def cache(self) -> Path:
        """Token stores and other caches, if the user names no other place."""
        return self.path / CACHE

    @property
    def model(self) -> Path:
        """The model that is the result."""
        return self.path / MODEL

    @property
    def last_model(self) -> Path:
        """The model after the last step, if another one may be the result."""
        return self.path / LAST_MODEL

    @property
    def ranker(self) -> Path:
        """The ranker that is trained together with the model, after the ranker's last step."""
        return self.path / RANKER

    @property
    def first_ranker(self) -> Path:
        """The ranker that training of both begins with, if it was trained here and not given."""
        return self.path / FIRST_RANKER

    @property
    def trec_runs(self) -> Path:
        """Runs as TREC files, for people."""
        return self.path / RUNS

    @property
    def index(self) -> Path:
        """The index of an experiment that builds its own."""
        return self.path / "index"

    def stores(self, kind: str) -> list[Path]:
        """The derived stores of a kind that are in the experiment's own cache.

        A cache that is a link lies elsewhere, and other experiments may use it.
        """
        folder = self.cache / kind
        return [] if self.cache.is_symlink() or folder.is_symlink() else sorted(filter(is_store, folder.glob("*")))

    def check_settings(self) -> None:
        """Refuse an experiment of one seed that has lost its settings.

        They are written before anything else, so without them nobody knows what made the rest.
        """
        left = (self.results, self.seal, self.metrics, self.path / EPISODES)
        if not self.settings.is_file() and not self.seeds() and any(place.exists() for place in left):
            what = "this experiment has lost its settings"
            raise ArtifactError(
                "MISSING_FILE", what, "restore this file, or give a new folder", path=self.settings
            )

    # ------------------------------------------------------------ episodes and states

    def episode(self, number: int) -> EpisodeFolder:
        """The paths of an episode, by its number."""
        return EpisodeFolder(self.path / f"{EPISODES}/{number}")

    @staticmethod
    def episode_within(relative: str) -> int | None:
        """The number of the episode that a path, relative to the experiment, lies in; None: in none."""
        parts = Path(relative).parts
        return int(parts[1]) if len(parts) > 1 and parts[0] == "episodes" and parts[1].isdigit() else None

    @staticmethod
    def version_within(relative: str) -> int | None:
        """The number of the version that was mined from the runs at a relative path; None: no version was."""
        found = re.search(r"-v(\d+)$", relative)
        return int(found[1]) if found else None

    def episodes(self) -> list[EpisodeFolder]:
        """The episodes that have a folder, in order."""
        found = [path for path in self.path.glob("episodes/*") if path.name.isdigit()]
        return [EpisodeFolder(path) for path in sorted(found, key=lambda path: int(path.name))]

    def state(self, step: int, episode: int | None = None) -> StateFolder:
        """The paths of the state after ``step`` steps (of an episode)."""
        return StateFolder(self.path / ("states/" + (f"{step}" if episode is None else f"{episode}-{step}")))

    def trial(self, rate: float) -> TrialFolder:
        """The paths of the trial of a learning rate."""
        return TrialFolder(self.path / f"trials/rate-{rate!r}")

    def trials(self) -> list[TrialFolder]:
        """The trials that have a folder."""
        return [TrialFolder(path) for path in sorted(self.path.glob("trials/rate-*"))]

    def measured_states(self) -> list[tuple[int, int]]:
        """List (episode, step) of every state that was measured between two steps and has a folder, in order."""
        found = [path.name.split("-") for path in self.path.glob("states/*-*") if path.is_dir()]
        return sorted(
            (int(parts[0]), int(parts[1])) for parts in found if len(parts) == 2 and all(map(str.isdigit, parts))
        )

    def steps_of_states(self) -> list[int]:
        """The steps, in order, of the states whose folder is named by the step alone, without an episode."""
        return sorted(int(path.name) for path in self.path.glob("states/*") if path.name.isdigit())

    def runs_of(self, name: str) -> Path:
        """The runs of a state that belongs to no episode, such as ``final``."""
        return self.path / name / RUNS

    def pools(self) -> list[Path]:
        """Every folder where a pool may stand."""
        places = ("episodes/*/negatives", "episodes/*/negatives/v*", "versions/v*")
        return [path for place in places for path in self.path.glob(place)]

    # ------------------------------------------------------------ asynchronous negatives

    @property
    def versions(self) -> Path:
        """Versions of the negatives; see :func:`version_in`."""
        return self.path / "versions"

    def exported(self, step: int) -> Path:
        """The model of a step, published to mine with."""
        return self.path / f"{EXPORTS}/step-{step:07d}"

    def exported_ranker(self, step: int) -> Path:
        """The ranker after a step of its own count, published to re-rank with."""
        return self.path / f"{EXPORTS}/ranker-{step:07d}"

    def exports(self) -> list[tuple[int, Path]]:
        """(step, place) of every model that is published to mine with, in order."""
        return sorted((number_of(path), path) for path in self.path.glob(f"{EXPORTS}/step-*"))

    @property
    def roles(self) -> Path:
        """The folder of roles: processes of one experiment that work at the same time."""
        return self.path / ROLES

    def role(self, name: str) -> Path:
        """The folder that the process with this role locks."""
        return self.roles / name

    def beat(self, role: str) -> Path:
        """The file that a role's process keeps touching as a sign of life."""
        return self.roles / f"{role}.beat"

    def roles_taken(self) -> list[Path]:
        """The folders of roles that a process holds, or held."""
        return sorted(path.parent for path in self.roles.glob(f"*/{LOCK}"))

    # ------------------------------------------------------------ several seeds

    def seed(self, seed: int) -> Layout:
        """The experiment of one seed among several."""
        return Layout(self.path / f"seed-{seed}")

    def seeds(self) -> list[Layout]:
        """The experiments of single seeds that have a folder."""
        return [Layout(path) for path in sorted(self.path.glob("seed-*"))]

    @property
    def all_seeds(self) -> Path:
        """The pattern that names the folders of all seeds, for messages."""
        return self.path / "seed-*"


def version_in(folder: Path, number: int) -> Path:
    """The path of a version of the negatives in a folder of versions, whether or not it exists."""
    return folder / f"v{number:04d}"


def versions_in(folder: Path) -> list[tuple[int, Path]]:
    """(number, place) of every version in a folder of versions, in order."""
    return sorted((number_of(path), path) for path in folder.glob("v[0-9]*"))


def number_of(place: Path) -> int:
    """The number at the end of a version's, a model's or a checkpoint's name."""
    return int(re.findall(r"\d+", place.name)[-1])


def with_index(runs: Path, kind: str) -> Path:
    """The folder of a state's runs through an index of this kind; it stands beside that of the exact runs."""
    return runs.with_name(f"{runs.name}-{kind}")


def reranked_runs(runs: Path, by: str) -> Path:
    """The folder of a state's runs as the ranker of this name re-ranks them; it stands beside that of its own."""
    return runs.with_name(f"{runs.name}-{by}")


def runs_beside(runs: Path) -> list[tuple[str, Path]]:
    """(kind of the index or name of the ranker, folder) of the runs that these make of a state, beside its own."""
    found = [
        (path.name.removeprefix(f"{runs.name}-"), path) for path in sorted(runs.parent.glob(f"{runs.name}-*"))
    ]
    return [(by, path) for by, path in found if not re.match(r"v\d", by)]


def geometry_of(runs: Path) -> Path:
    """What is kept of all passages' vectors by a state, beside its runs."""
    return runs / GEOMETRY


def sample_of(runs: Path) -> Path:
    """A few vectors of a state, beside its runs."""
    return runs / "sample"


def runs_of_part(runs: Path) -> Path:
    """The runs of a state among a part of the passages, within the folder of its runs."""
    return runs / "part"


def errors_of(runs: Path, split: str) -> Path:
    """A state's pairwise errors on a split, beside its runs."""
    return runs / f"{split}-errors"


def informative_of(runs: Path) -> Path:
    """A state's share of training negatives that are still near, beside its runs."""
    return runs / "informative"


def sharpness_of(runs: Path) -> Path:
    """How sharp a state's scores are, beside its runs."""
    return runs / "sharpness"


def run_of(runs: Path, name: str) -> Path:
    """One run of a state."""
    return runs / name


def trec_run(folder: Path, state: str, split: str) -> Path:
    """The run of a state on a split that is written for people."""
    return folder / f"{state}.{split}.trec.gz"


def is_experiment(layout: Layout) -> bool:
    """Whether a folder is that of an experiment, of one seed or of several."""
    return layout.settings.is_file() or any(seed.settings.is_file() for seed in layout.seeds())


def cache_beside(model: str | Path) -> Path | None:
    """The cache in the experiment that trained this model; None if another cache was named then, or none did."""
    place = Path(model).absolute()
    layout = Layout(place.parent)
    trained = layout.model == place and is_experiment(layout)
    return layout.cache if trained and layout.cache.is_dir() else None
