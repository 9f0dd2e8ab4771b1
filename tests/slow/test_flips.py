"""A seeded sample of the bit flips and truncations of `make flips`."""

import pytest

from faults import flips
from worlds.tiny_world import one_thread, tiny_collection  # noqa: F401

pytestmark = pytest.mark.slow


def test_every_flipped_bit_and_every_truncation_of_a_sample_is_found(tmp_path):
    kinds = flips.make(tmp_path)
    flips.sound(kinds)
    done, faults = flips.check(kinds, {"flip": 150, "truncation": 75}, seed=2)
    assert faults == {}
    assert all(done[kind.name, "flip"] >= 10 and done[kind.name, "truncation"] >= 5 for kind in kinds)
    flips.sound(kinds)


def test_what_is_not_found_is_told(tmp_path):
    """The program can fail: here a use does not look, and there a file is no part of what is verified."""
    folder = tiny_collection(tmp_path / "collection").path
    blind = flips.Kind("blind", folder, [folder / "manifest.json"], lambda path: None)
    assert list(flips.check([blind], {"flip": 1}, seed=2)[1].values()) == [["used without a word"]]
    stranger = tmp_path / "notes.txt"
    stranger.write_text("nobody vouches for this")
    _, faults = flips.check([flips.Kind("stranger", folder, [stranger], blind.use)], {"truncation": 1}, seed=2)
    assert list(faults.values()) == [["verify finds nothing", "used without a word"]]
