"""The paths of an experiment's folder are defined in one module only."""

import ast
from pathlib import Path, PurePosixPath

import pytest

import hardneg
from hardneg.experiment import layout as paths
from hardneg.experiment.layout import Layout

SOURCE = Path(hardneg.__file__).parent
LAYOUT = "experiment/layout.py"
FILES = {
    getattr(paths, name)
    for name in [
        "SETTINGS",
        "RESULTS",
        "SEAL",
        "METRICS",
        "VERSION_LOG",
        "TIMING",
        "LOG",
        "PLACES",
        "CURVE",
        "TIMELINE",
    ]
}
# Of these a word may mean something else (a key, a kind, a side): they count in a path only.
FOLDERS = {
    *("episodes", "states", "versions", "roles", "runs", "model", "models", "last", "final", "untrained"),
    *("negatives", "checkpoint", "cache", "tensorboard", "measured", "informative", "seed-*"),
}
BESIDE_A_PATH = {"index", "geometry", "sample", "part"}  # in others they are in the purpose of a random draw
PREFIXES = ("seed-", "runs-v", "step-0", "learning_curve", "timeline")
BY_NAME = (".glob", ".rglob", ".with_name", ".joinpath")
# Folders of their own that are in no experiment: (module, what is divided or looked through).
ELSEWHERE = {
    ("api/retrievers.py", "cache / 'runs'"),  # of a model over a collection, by digests
    ("models/pretrained.py", "Path(spec.submodule_search_locations[0]) / 'model'"),  # in a package
}


def texts_of(node):
    """A string, or the fixed parts of an f-string with * for the rest; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "*" for part in node.values)
    return None


def docstrings(tree):
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node.body[0].value for node in ast.walk(tree) if isinstance(node, owners) and is_told(node.body)]
    return {id(node) for node in nodes}


def is_told(body):
    return bool(body) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)


def constants_of(tree):
    """The names that a module gives to texts or other expressions, and these."""
    told = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    return {node.targets[0].id: node.value for node in told}


def in_a_path(tree):
    """(node, the whole expression) of texts in a division, or by which a folder is looked through."""
    named = constants_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            yield from ((named.get(ast.unparse(side), side), node) for side in (node.left, node.right))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(BY_NAME):
            yield from ((argument, node) for argument in node.args)


def literals_of(tree, module):
    """The texts of a module that name something in an experiment's folder."""
    told, parts = (
        docstrings(tree),
        {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values},
    )
    whole = {id(node): ast.unparse(expression) for node, expression in in_a_path(tree)}
    for node in ast.walk(tree):
        text = texts_of(node)
        if text is None or id(node) in told or id(node) in parts or (module, whole.get(id(node))) in ELSEWHERE:
            continue
        if is_ours(text, in_path=id(node) in whole):
            yield f"{module}:{node.lineno}: {text}"


def is_ours(text, *, in_path):
    """Whether a text names something in an experiment's folder; ``in_path``: it stands in a division."""
    names = set(PurePosixPath(text).parts)
    if (names & FILES and " " not in text) or (in_path and names & BESIDE_A_PATH):
        return True
    is_path = in_path or ("/" in text and not set(text) & set(" `:\n"))
    return is_path and bool(names & FOLDERS or any(name.startswith(PREFIXES) for name in names))


def test_no_other_module_names_a_path_of_an_experiment():
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        module = path.relative_to(SOURCE).as_posix()
        if module != LAYOUT:
            found += literals_of(ast.parse(path.read_text("utf-8")), module)
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        'experiment / "model"',
        'experiment / f"episodes/{episode}/negatives"',
        'start = "episodes/1/runs"',
        'folder.glob("seed-*")',
        'place / f"seed-{seed}"',
        'SETTINGS = "settings.json"',
        'open(f"{folder}/results.json")',
        'runs.with_name("runs-v0001")',
        'f"states/{step}/model"',
        'LAST = "last/model"',
        'experiment / f"{name}/runs"',
        'FOLDER = "part"\nplace = state.folder / FOLDER',
    ],
)
def test_such_a_path_is_seen(line):
    assert list(literals_of(ast.parse(line), "recipes/new.py"))


@pytest.mark.parametrize(
    "line",
    [
        '{"model": digest, "runs": 3}',
        '"""It stands in ``episodes/1/model``."""',
        'raise Fault("model/ is the best; see states/1-2/runs")',
        'name.startswith("episode-")',
        "a / b",
    ],
)
def test_a_word_that_is_no_path_is_left_alone(line):
    assert not list(literals_of(ast.parse(line), "recipes/new.py"))


def test_what_stands_elsewhere_is_still_there():
    for module, expression in ELSEWHERE:
        tree = ast.parse((SOURCE / module).read_text("utf-8"))
        assert expression in {ast.unparse(whole) for _, whole in in_a_path(tree)}, (module, expression)


def test_the_paths_are_those_that_experiments_have(tmp_path):
    layout = Layout(tmp_path)
    episode, state = layout.episode(2), layout.state(30, 2)
    found = {
        "episodes/2/model": episode.model,
        "episodes/2/negatives": episode.negatives,
        "episodes/2/runs": episode.runs,
        "episodes/2/checkpoint": episode.checkpoints,
        "episodes/2/negatives/v0003": episode.version(3),
        "episodes/2/runs-v0003": episode.version_runs(3),
        "episodes/2/runs/geometry": paths.geometry_of(episode.runs),
        "episodes/2/runs/sample": paths.sample_of(episode.runs),
        "episodes/2/runs/part": paths.runs_of_part(episode.runs),
        "states/2-30/model": state.model,
        "states/2-30/runs": state.runs,
        "states/2-30/measured": state.record,
        "states/30/model": layout.state(30).model,
        "model": layout.model,
        "last/model": layout.last_model,
        "final/runs": layout.runs_of("final"),
        "models/step-0000004": layout.exported(4),
        "versions/v0005": paths.version_in(layout.versions, 5),
        "roles/trainer": layout.role("trainer"),
        "roles/trainer.beat": layout.beat("trainer"),
        "seed-7/settings.json": layout.seed(7).settings,
        "final/runs-pq": paths.with_index(layout.runs_of("final"), "pq"),
    }
    assert {name: layout.relative(path) for name, path in found.items()} == {name: name for name in found}


def test_what_is_there_is_listed_by_number(tmp_path):
    layout = Layout(tmp_path)
    for place in (
        layout.episode(10).model,
        layout.episode(9).model,
        layout.state(5, 10).runs,
        layout.state(40, 9).runs,
    ):
        place.mkdir(parents=True)
    for place in (layout.state(3).runs, layout.exported(20), layout.exported(3), layout.seed(1).path):
        place.mkdir(parents=True)
    assert [folder.path.name for folder in layout.episodes()] == ["9", "10"]
    assert layout.measured_states() == [(9, 40), (10, 5)]
    assert [step for step, _ in layout.exports()] == [3, 20]
    assert [seed.path.name for seed in layout.seeds()] == ["seed-1"]
