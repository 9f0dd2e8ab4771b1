"""The course of training that an experiment stores is what the table for earlier versions says of it, too."""

import json

import pytest

from hardneg.api.recipes import RECIPES, settings_of
from hardneg.config import Settings
from hardneg.experiment.course import COURSE, Course, course_of
from hardneg.experiment.folder import record_of

CASES = [
    ("ance-tele", {}),
    ("ance-tele", {"start": "continue", "momentum": "accumulate"}),
    ("ance-tele", {"first": "in_batch"}),
    ("ance-tele", {"first": "in_batch", "episodes": 1}),
    ("ance-tele", {"start_episode": 2}),
    ("warmup", {"mixtures": ["in_batch"]}),
    ("warmup", {"mixtures": ["in_batch", "in_batch", "bm25", "in_batch"]}),
    ("warmup", {"mixtures": ["bm25", "in_batch"]}),
    ("ance", {}),
    ("star", {}),
    ("adore", {"preset": "demo"}),
    ("ar2", {"preset": "demo"}),
    ("ranker", {}),
]


def test_every_recipe_is_a_case():
    assert {recipe for recipe, _ in CASES} == set(RECIPES)


@pytest.mark.parametrize(("recipe", "changes"), CASES)
def test_the_stored_course_is_that_of_the_settings_and_of_earlier_versions(recipe, changes):
    settings = settings_of(recipe, **changes)
    record = json.loads(json.dumps(record_of(recipe, settings, {})))
    assert course_of(record) == settings.course
    del record[COURSE]
    assert course_of(record) == settings.course


def test_a_new_recipe_needs_no_entry_in_the_table():
    course = Course(mines="iterations", several_episodes=True, in_batch=(1, 2), momentum_from=1)
    assert course_of({"recipe": "new", **json.loads(json.dumps(course.as_record()))}) == course
    assert course_of({"recipe": "new"}) == Course()


def test_what_a_later_version_stores_besides_is_left_alone():
    stored = Course(restarts=True).as_record()[COURSE] | {"later": 3}
    assert course_of({"recipe": "new", COURSE: stored}) == Course(restarts=True)


def test_the_course_is_no_part_of_what_decides_the_result():
    settings = settings_of("ance")
    assert COURSE not in settings.result_values()
    assert Settings().told_besides == {}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"start_episode": 1}, 1),
        ({"first": "in_batch"}, 2),
        ({"start_episode": 2}, 0),
        ({"first": "in_batch", "start_episode": 2}, 0),
        ({"momentum": "accumulate"}, None),
    ],
)
def test_the_first_episode_that_can_take_negatives_of_the_pool_before(settings, expected):
    assert course_of({"recipe": "ance-tele", "settings": settings}).momentum_from == expected
