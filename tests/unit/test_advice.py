"""Advice that names an option comes only from commands that have this option, as far as the source shows."""

import ast
import re
from collections import ChainMap
from pathlib import Path

import pytest
import typer

import hardneg
from hardneg.cli import app
from hardneg.recipes.catalogue import CATALOGUE

SOURCE = Path(hardneg.__file__).parent
OPTION = re.compile(r"(?:hardneg ([a-z]+)(?: [A-Z]+)*\b[^;]*?)?(?<![\w-])(--[a-z][a-z0-9-]+)")

# What only looks as if a command could say it.
HIDDEN = ("role",)  # what it says is shown by train
CHECKS = (  # of what was given by the option itself, or by settings that only recipes with the option have
    "hardneg.models.code.allow_code",
    "hardneg.api.audit.audit",
    "hardneg.api.audit.check_threshold",
    "hardneg.recipes.frozen.frozen_inputs",
    "hardneg.recipes.frozen.no_teacher",
    "hardneg.recipes.ranker.RankerTraining.check_first",
    "hardneg.recipes.ranker.train_ranker",
    "hardneg.recipes.group_settings.GroupSettings.with_frozen",
    "hardneg.recipes.group_settings.MiningSettings.with_frozen",
)
OWN = (  # options, what help says of them, and advice of the doctor on other commands (tests/unit/test_examine)
    "hardneg.cli",
    "hardneg.recipes.catalogue",
    "hardneg.recipes.usual",
    "hardneg.recipes.meanings",
    "hardneg.api.examine",
    "hardneg.foreign_names",  # names of settings of training
)
RECIPES = ("hardneg.api.recipes", "RECIPES")
IF_GIVEN = {"--max-ram", "--max-vram"}  # told of only where the option, or a supervisor that has it, set a limit
NEVER = {
    *((recipe, "--pool") for recipe in ("ance", "adore")),  # no later first episode, no source file
    ("ar2", "--pool"),  # it mines its own
    ("adore", "--filter-by"),  # it has none of the bounds
    *(
        (command, f"--allow-{what}") for command in ("show", "diagnose") for what in ("bin", "code")
    ),  # without models
    ("import", "--filter-by"),  # it keeps given negatives without bounds
    *((recipe, "--role") for recipe in ("ance-tele", "warmup", "star", "adore", "ar2", "ranker")),  # without roles
    ("doctor", "--train"),  # it takes a split that is there
    ("doctor", "--dev"),  # of `hardneg train`, which holds out as the doctor says
    ("fuse", "--split"),  # it fuses runs, and no experiments
    ("show", "--out"),  # of `hardneg train --out`
    ("clean", "--allow-bin"),  # it reads a model that was saved here, as safetensors
}


def module_of(path):
    name = ".".join(("hardneg", *path.relative_to(SOURCE).with_suffix("").parts))
    return name.removesuffix(".__init__")


def bound(node):
    """What an import gives names to."""
    return {one.asname or one.name: (node.module or "", one.name) for one in node.names}


class Graph:
    """Which functions a function may call: by their imported names, or by the name of a method."""

    def __init__(self):
        self.bodies, self.names, self.methods, self.imported = {}, {}, {}, {}
        for path in sorted(SOURCE.rglob("*.py")):
            self.read(module_of(path), ast.parse(path.read_text("utf-8")))

    def read(self, module, tree):
        names, imported = self.names.setdefault(module, {}), self.imported.setdefault(module, {module})
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module)
                if node in tree.body:
                    names |= bound(node)
        self.define(module, tree, names)

    def define(self, module, tree, names):
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self.add(module, node.name, node)
            elif isinstance(node, ast.ClassDef):
                names[node.name] = (module, node.name)
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef):
                        self.add(module, f"{node.name}.{inner.name}", inner)
                        self.methods.setdefault(inner.name, []).append((module, f"{node.name}.{inner.name}"))
            elif isinstance(
                node, ast.Assign | ast.AnnAssign
            ):  # constants that advice is made of, tables of functions
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        self.add(module, target.id, node)

    def add(self, module, name, node):
        self.bodies[module, name] = node
        self.names[module].setdefault(name, (module, name))

    def called(self, place):
        """What the body of a function names."""
        module, nodes = place[0], list(ast.walk(self.bodies[place]))
        if place == RECIPES:
            yield from ((facts.home, "RECIPE") for facts in CATALOGUE)  # which it imports by name
        inside = [bound(node) for node in nodes if isinstance(node, ast.ImportFrom)]
        known = dict(ChainMap(*inside, self.names[module]))
        for node in nodes:
            if isinstance(node, ast.Name) and node.id in known:
                yield from self.resolve(*known[node.id])
            elif isinstance(node, ast.Attribute):
                owner = known.get(node.value.id) if isinstance(node.value, ast.Name) else None
                if owner and ".".join(owner) in self.names:
                    yield from self.resolve(".".join(owner), node.attr)
                else:
                    methods = self.methods.get(node.attr, [])
                    yield from (method for method in methods if method[0] in self.imported[module])

    def resolve(self, module, name):
        """The function of this name, or what making an object of this class calls."""
        seen = set()
        while (module, name) not in self.bodies and name in self.names.get(module, {}):
            if (module, name) in seen or self.names[module][name] == (module, name):
                break
            seen.add((module, name))
            module, name = self.names[module][name]
        places = [(module, name), *((module, f"{name}.{special}") for special in ("__init__", "__post_init__"))]
        places.append((f"{module}.{name}", "RECIPE"))  # of a module in a table of them
        yield from (place for place in places if place in self.bodies)

    def reached(self, place):
        """Everything that a function may end in."""
        found, front = {place}, [place]
        while front:
            for one in self.called(front.pop()):
                if one not in found:
                    found.add(one)
                    front.append(one)
        return found

    def advice(self, place):
        """(command or "", option) that the strings of a function name."""
        body = self.bodies[place]
        said = ast.get_docstring(body, clean=False) if isinstance(body, ast.FunctionDef) else None
        for node in ast.walk(body):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != said:
                yield from OPTION.findall(node.value)


GRAPH = Graph()


def commands(group, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(typer.main.get_command(app)))
OPTIONS = {
    words: {name for option in command.params for name in option.opts} for words, command in COMMANDS.items()
}


def wrong_advice(words, graph=GRAPH):
    """Options that a command may tell of and that do not exist."""
    function = COMMANDS[words].callback
    function = getattr(function, "__wrapped__", function)
    name = function.__qualname__.split(".")[0]  # of what makes it, where it is made
    wrong = []
    for place in sorted(graph.reached((function.__module__, name))):
        if place[0].startswith(OWN) or ".".join(place) in CHECKS:  # speak of their own
            continue
        for command, option in graph.advice(place):
            there = OPTIONS[(command,)] if (command,) in OPTIONS else OPTIONS[words]
            if option not in there | IF_GIVEN and (words[-1], option) not in NEVER:
                wrong.append((".".join(place), option))
    return wrong


@pytest.mark.parametrize("words", [words for words in COMMANDS if words != HIDDEN], ids=" ".join)
def test_options_that_advice_names_exist(words):
    assert wrong_advice(words) == []


def test_the_graph_sees_what_commands_do():
    train = GRAPH.reached(("hardneg.cli.train", "command_of"))
    for module, name in (
        ("data.checks", "encoded_text"),
        ("models.pretrained", "find_weights"),
        ("config", "describe"),
        ("models.code", "refusal"),
        ("recipes.warmup", "mixture_pool"),
    ):
        assert (f"hardneg.{module}", name) in train
    assert ("hardneg.models.pretrained", "find_weights") not in GRAPH.reached(
        ("hardneg.cli.evaluating", "evaluate")
    )


def test_advice_that_a_command_cannot_follow_is_found(monkeypatch):
    for words, option in (
        (("mine",), "--allow-bin"),
        (("evaluate",), "--qrels"),
        (("train", "star"), "--allow-code"),
    ):
        monkeypatch.setitem(OPTIONS, words, OPTIONS[words] - {option})
        assert {said for _, said in wrong_advice(words)} == {option}


def test_a_command_may_be_named_with_its_option():
    assert OPTION.findall("do it with hardneg import --allow-empty") == [("import", "--allow-empty")]
    assert OPTION.findall("give either --data or --qrels") == [("", "--data"), ("", "--qrels")]
