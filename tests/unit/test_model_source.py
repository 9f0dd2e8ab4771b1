"""The record that says where models come from, and the counts of a recipe for its plan and its training."""

import subprocess
import sys
from types import SimpleNamespace

from hardneg.models.source import ModelSource
from hardneg.recipes.cost_model import work_of
from hardneg.recipes.star import Star


def test_the_record_loads_no_torch_and_has_a_place_for_a_ranker():
    code = "import sys\nfrom hardneg.models.source import ModelSource\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    source = ModelSource.at("a", "b", allow_bin=True)
    assert (source.places, source.ranker, source.allow_code) == (["a", "b"], None, ())
    assert source.tokenizing == ModelSource("a", allow_bin=True, device="cpu")


def test_a_plan_counts_the_measured_states_of_a_schedule_that_is_not_run_to_its_end():
    unused = SimpleNamespace(train=(), dev=None, test=None)  # the data of this plan
    settings = Star(steps=40, stop_step=5, measure_every=0.05)
    episode = settings.episode_of(60)
    assert (episode.steps, episode.scheduled) == (5, 40)
    assert settings.measured_steps(episode) == [2, 4]
    assert work_of(settings, unused, [episode], states=2, entries=1).passed == 2
