"""Settings: all faults at once with the nearest key, TOML values, layers, and the ones that decide a result."""

import os
import re
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field, field_validator, model_validator

from hardneg.config import (
    Settings,
    build,
    differences,
    is_operational,
    known_keys,
    merge,
    nearest,
    operational,
    read_overrides,
    read_preset,
    read_toml,
    read_value,
)
from hardneg.errors import Faults, HardnegError, InputError, ResourceError, SettingsError


class Optimiser(Settings):
    learning_rate: float = Field(1e-3, gt=0)
    fused: bool = operational(False)


class Demo(Settings):
    count: int = Field(30, ge=1)
    alpha: float = Field(0.5, ge=0, lt=1)
    dedup: bool = False
    prompt: str = ""
    towers: Literal["tied", "untied"] | None = None
    sizes: list[int] = Field([16, 32], min_length=1)
    optimiser: Optimiser = Optimiser()
    even: int = 2
    log_every: int = operational(10, ge=1)

    @field_validator("even")
    @classmethod
    def _is_even(cls, value):
        if value % 2:
            raise ValueError("Odd numbers are not even")
        return value


def faults_of(*overrides, **values):
    with pytest.raises(Faults) as raised:
        build(Demo, read_overrides(overrides), values)
    assert raised.value.status == 2
    return raised.value.lines


# ---------------------------------------------------------------- faults


def test_every_fault_is_told_at_once_each_on_a_line_of_its_own():
    lines = faults_of(
        "count=0", "alfa=0.3", "dedup=1", "towers=teid", "optimiser.learning_rat=1", "sizes=[1,true,x]"
    )
    assert lines == [
        "BAD_SETTING: count = 0; it should be greater than or equal to 1",
        "BAD_SETTING: dedup = 1; it should be a valid boolean",
        "BAD_SETTING: towers = \"teid\"; it should be 'tied' or 'untied'",
        'BAD_SETTING: sizes = "[1,true,x]"; it should be a list, such as [1, 2]',
        "UNKNOWN_SETTING: there is no setting 'optimiser.learning_rat'; did you mean 'optimiser.learning_rate'?",
        "UNKNOWN_SETTING: there is no setting 'alfa'; did you mean 'alpha'?",
    ]


def test_all_texts_that_are_no_assignment_are_told_at_once():
    with pytest.raises(Faults) as raised:
        read_overrides(["count=3", "alpha", "=5", " = 5", ".seed=1", "optimiser..rate=1"])
    assert [line.split(";")[0] for line in raised.value.lines] == [
        "BAD_OVERRIDE: 'alpha' is not key=value",
        "BAD_OVERRIDE: '=5' is not key=value",
        "BAD_OVERRIDE: ' = 5' is not key=value",
        "BAD_OVERRIDE: '.seed=1' is not key=value",
        "BAD_OVERRIDE: 'optimiser..rate=1' is not key=value",
    ]
    assert raised.value.status == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("count=true", "count = true; it should be a valid integer"),
        ("alpha=true", "alpha = true; it should be a valid number"),
        ("alpha=false", "alpha = false; it should be a valid number"),
        ("dedup=0", "dedup = 0; it should be a valid boolean"),
        ("count=3.0", "count = 3.0; it should be a valid integer"),
        ('count="3"', 'count = "3"; it should be a valid integer'),
        ("prompt=3", "prompt = 3; it should be a valid string"),
        ("alpha=nan", "alpha = NaN; it should be a finite number"),
        ("alpha=inf", "alpha = Infinity; it should be a finite number"),
        ("alpha=-inf", "alpha = -Infinity; it should be a finite number"),
        ("alpha=1e400", "alpha = Infinity; it should be a finite number"),
        ("count=nan", "count = NaN; it should be a valid integer"),
        ("alpha=1", "alpha = 1; it should be less than 1"),
        ("alpha=-0.1", "alpha = -0.1; it should be greater than or equal to 0"),
        ("count=2020-01-01", 'count = "2020-01-01"; it should be a valid integer'),
        ("sizes=[]", "sizes = []: list should have at least 1 item after validation, not 0; give a valid value"),
        ("sizes=[1, true]", "sizes.1 = true; it should be a valid integer"),
        ("optimiser=3", "optimiser = 3; it should be a table"),
        ("optimiser.learning_rate=0", "optimiser.learning_rate = 0; it should be greater than 0"),
        ("count.deeper=1", 'count = {"deeper": 1}; it should be a valid integer'),
        ("even=3", "even = 3: odd numbers are not even; give a valid value"),
    ],
)
def test_a_wrong_value_is_refused_and_shown(override, message):
    assert faults_of(override) == [f"BAD_SETTING: {message}"]


def test_settings_that_do_not_go_together_are_refused_as_a_whole():
    class Pair(Settings):
        low: int = 1
        high: int = 2

        @model_validator(mode="after")
        def _is_in_order(self):
            if self.low > self.high:
                raise ValueError("low is above high")
            return self

    with pytest.raises(Faults, match=r'BAD_SETTING: settings = \{"low": 3\}: low is above high; give'):
        build(Pair, {"low": 3})


def test_numbers_that_are_no_numbers_are_refused_from_python_too():
    assert len(faults_of(alpha=float("nan"), count=float("inf"), even=float("-inf"))) == 3


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("cuont", "count"),
        ("optimizer", "optimiser"),
        ("learning_rate", "optimiser.learning_rate"),
        ("optimizer.learning_rate", "optimiser"),
        ("logevery", "log_every"),
    ],
)
def test_the_nearest_key_is_named(key, near):
    (line,) = faults_of(f"{key}=1")
    assert line.endswith(f"; did you mean '{near}'?")


def test_where_no_key_is_near_all_are_named():
    (line,) = faults_of("zzz=1")
    known = (
        "alpha, count, dedup, even, log_every, optimiser, optimiser.fused, optimiser.learning_rate, prompt, sizes"
    )
    assert line == f"UNKNOWN_SETTING: there is no setting 'zzz'; known are: {known}, towers"


def test_settings_never_change():
    settings = build(Demo)
    with pytest.raises(ValueError, match="frozen"):
        settings.count = 3


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30", 30),
        ("-1", -1),
        ("1_000", 1000),
        ("5e-6", 5e-6),
        ("1.0", 1.0),
        ("true", True),
        ("[16, 32]", [16, 32]),
        ('["bm25"]', ["bm25"]),
        ('"30"', "30"),
        ('""', ""),
        ("'a b'", "a b"),
        ("cls", "cls"),
        ("", ""),
        ("True", "True"),
        ("bm25,random", "bm25,random"),
        ("query: ", "query: "),
        ("a = b", "a = b"),
        ("RR@10 nDCG@10", "RR@10 nDCG@10"),
        ("007", "007"),
        ("ünïcode ☃", "ünïcode ☃"),
        ("1\ncount = 2", "1\ncount = 2"),
        ("1\n[table]", "1\n[table]"),
    ],
)
def test_a_value_is_toml_and_what_is_not_is_a_string(text, value):
    found = read_value(text)
    assert found == value
    assert type(found) is type(value)


def test_overrides_nest_and_later_ones_win():
    texts = ["a=1", "b.c=2", "b.d.e=x=y", " a =3", "b.c=4", "f=1", "f.g=2"]
    assert read_overrides(texts) == {"a": 3, "b": {"c": 4, "d": {"e": "x=y"}}, "f": {"g": 2}}
    assert read_overrides([]) == {}


def test_layers_are_merged_table_by_table_and_not_changed():
    base, over = {"a": 1, "t": {"x": 1, "y": {"z": 1}}}, {"b": 2, "t": {"x": 3, "y": {"w": 4}}}
    assert merge(base, over) == {"a": 1, "b": 2, "t": {"x": 3, "y": {"z": 1, "w": 4}}}
    assert merge({"t": 1}, {"t": {"x": 1}}) == {"t": {"x": 1}}
    assert merge({"t": {"x": 1}}, {"t": 1}) == {"t": 1}
    assert base == {"a": 1, "t": {"x": 1, "y": {"z": 1}}}
    assert over == {"b": 2, "t": {"x": 3, "y": {"w": 4}}}


def test_later_layers_win():
    settings = build(
        Demo,
        {"count": 1, "alpha": 0.1, "optimiser": {"fused": True}},
        {"count": 2, "optimiser": {"learning_rate": 1}},
        read_overrides(["count=3", "towers=tied"]),
    )
    assert (settings.count, settings.alpha, settings.towers, settings.dedup) == (3, 0.1, "tied", False)
    assert settings.optimiser == Optimiser(learning_rate=1.0, fused=True)
    assert type(settings.optimiser.learning_rate) is float


# ---------------------------------------------------------------- files


def test_a_settings_file_is_toml(tmp_path):
    (tmp_path / "a.toml").write_bytes('count = 3\nprompt = "für: "\n[optimiser]\nlearning_rate = 1e-5\n'.encode())
    values = read_toml(tmp_path / "a.toml")
    assert values == {"count": 3, "prompt": "für: ", "optimiser": {"learning_rate": 1e-5}}
    assert build(Demo, values).prompt == "für: "
    (tmp_path / "marked.toml").write_bytes(b"\xef\xbb\xbfcount = 3\n")  # as editors on Windows begin a file
    assert read_toml(tmp_path / "marked.toml") == {"count": 3}


def test_a_settings_file_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "bad.toml").write_text("count = 3\ncount 4\n")
    (tmp_path / "digits.toml").write_text(f"count = {'1' * 5000}\n")
    (tmp_path / "latin.toml").write_bytes(b'prompt = "f\xfcr"\n')
    for name, error, code in (
        ("bad.toml", SettingsError, r"bad\.toml:2: BAD_TOML: not valid TOML .* at column 7\)"),
        (
            "digits.toml",
            SettingsError,
            r"digits\.toml: BAD_TOML: not valid TOML \(an integer has thousands of digits\)",
        ),
        ("latin.toml", SettingsError, r"latin\.toml:1: BAD_TOML: not UTF-8 \(0xfc\)"),
        ("nowhere.toml", InputError, "NOT_FOUND"),
        ("bad.toml/below.toml", InputError, "NOT_FOUND"),
        (".", ResourceError, "UNREADABLE"),
    ):
        with pytest.raises(error, match=code):
            read_toml(tmp_path / name)


def test_an_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(
        SettingsError, match="UNKNOWN_PRESET: ance-tele has no preset 'msmacro'; did you mean 'msmarco'"
    ):
        read_preset("ance-tele", "msmacro")


# ---------------------------------------------------------------- what decides a result


def test_operational_settings_are_no_result_values_at_any_depth():
    settings = build(Demo, {"log_every": 3, "optimiser": {"fused": True}})
    assert settings.result_values() == {
        "count": 30,
        "alpha": 0.5,
        "dedup": False,
        "prompt": "",
        "towers": None,
        "sizes": [16, 32],
        "optimiser": {"learning_rate": 0.001},
        "even": 2,
    }
    assert is_operational(Demo, "log_every")
    assert not is_operational(Demo, "count")
    assert settings.result_values() == build(Demo).result_values()
    assert settings.result_values() != build(Demo, {"optimiser": {"learning_rate": 1}}).result_values()


def test_operational_settings_are_checked_as_all_others():
    assert faults_of("log_every=0") == ["BAD_SETTING: log_every = 0; it should be greater than or equal to 1"]


def test_known_keys_are_dotted():
    assert known_keys(Demo)[6:9] == ["optimiser", "optimiser.learning_rate", "optimiser.fused"]


def test_differences_name_key_and_both_values():
    assert differences({"a": 1, "b": [1], "c": 2}, {"a": 1, "b": [2], "d": "x"}) == [
        "b: [1] -> [2]",
        "c: 2 -> none",
        "d: none -> 'x'",
    ]
    assert differences({"a": 1}, {"a": 1}) == []


def test_differences_of_long_values_show_where_they_differ():
    old, new = list(range(100)), [*range(90), -1, *range(91, 100)]
    (line,) = differences({"a": old}, {"a": new})
    assert len(line) < 180
    assert re.fullmatch(r"a: ….* 90, 91, .* -> ….* -1, 91, .*", line)
    (line,) = differences({"a": "x" * 200}, {"a": None})
    assert line == f"a: '{'x' * 79}… -> none"


def test_the_nearest_word():
    assert nearest("msmacro", {"nq": 1, "msmarco": 2}) == "did you mean 'msmarco'?"
    assert nearest("zzz", ["b", "a"]) == "known are: a, b"


def test_faults_are_faults():
    with pytest.raises(HardnegError) as raised:
        build(Demo, {"count": 0, "alpha": 2})
    assert [type(fault) for fault in raised.value.faults] == [SettingsError, SettingsError]


# ---------------------------------------------------------------- nothing as a value


class Unset(Settings):
    most: int | None = Field(5, ge=1)
    head: Literal["none", "ance"] | None = "ance"
    prompt: str | None = "p"
    sizes: list[int] | None = None
    steps: float = 1.0


def test_none_takes_back_what_a_preset_set():
    before = {"most": 7, "sizes": [1], "prompt": "query: "}
    built = build(Unset, before, read_overrides([f"{name}=none" for name in before]))
    assert (built.most, built.sizes, built.prompt) == (None, None, None)
    assert build(Unset, before, read_overrides(["prompt="])).prompt == ""


def test_none_stays_a_word_where_it_is_one():
    assert build(Unset, read_overrides(["head=none"])).head == "none"


def test_none_is_refused_where_a_value_is_needed():
    with pytest.raises(Faults) as raised:
        build(Unset, read_overrides(["steps=none"]))
    assert raised.value.lines == ['BAD_SETTING: steps = "none"; it should be a valid number']


def test_a_pipe_is_no_settings_file_because_the_second_reader_would_find_it_empty():
    reads, writes = os.pipe()
    os.write(writes, b"steps = 3\n")
    os.close(writes)
    with pytest.raises(SettingsError, match=r"BAD_TOML: this is a pipe, .*; write the settings to a file"):
        read_toml(Path(f"/dev/fd/{reads}"))
    os.close(reads)


def test_a_name_that_the_system_refuses_is_told_in_one_line():
    with pytest.raises(ResourceError, match="UNREADABLE: cannot read"):
        read_toml(Path("x" * 300 + ".toml"))


def test_text_that_is_not_utf8_is_named():
    """Bytes of a command line that are not UTF-8 become lone surrogates."""
    with pytest.raises(Faults) as raised:
        build(Unset, read_overrides(["prompt=a\udcff", "most=3"]), {"sizes": ["\ud800"], "\udcfe": 1})
    said = " is not UTF-8, or holds a lone surrogate; correct the text"
    assert raised.value.lines == [
        rf"BAD_SETTING: prompt = 'a\udcff'{said}",
        rf"BAD_SETTING: sizes = ['\ud800']{said}",
        rf"BAD_SETTING: \udcfe = 1{said}",
    ]
    assert build(Unset, read_overrides(["prompt=é 你 😀"])).prompt == "é 你 😀"
