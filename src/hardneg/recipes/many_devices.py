"""Estimates of training on several devices like the one that was timed, computed from the figures of that one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from hardneg.errors import SettingsError
from hardneg.process.progress import clock

WITHIN = 10e9  # bytes a second from one device to another of the same machine: assumed, as over PCIe
BETWEEN = 1.25e9  # bytes a second to a device of another machine: assumed, as over Ethernet of 10 Gbit/s
MOST = 100_000
IN_ONE = "measure in one process"  # the stage of the process that starts two groups: it measures the final state


@dataclass(frozen=True)
class Devices:
    """Equal devices that train together, as many on each machine.

    Attributes
    ----------
    mining : devices of a second group, which mines while the first trains; 0: the devices that train do all.
    given : bytes a second that a device sends to another one, as the user says; None: they are assumed.
    """

    machines: int = 1
    each: int = 1  # devices of a machine
    mining: int = 0
    given: float | None = None

    @property
    def count(self) -> int:
        """The number of devices that train."""
        return self.machines * self.each

    @property
    def miners(self) -> Devices:
        """The devices that encode, search and mine: the group that only mines, if there is one, else all."""
        return replace(self, machines=1, each=self.mining, mining=0) if self.mining else self

    @property
    def is_alone(self) -> bool:
        """Whether one device does all."""
        return self.count == 1 and not self.mining

    @property
    def rate(self) -> float:
        """Bytes a second over the slowest connection between two devices."""
        return self.given or (WITHIN if self.machines == 1 else BETWEEN)

    def exchange_seconds(self, size: float) -> float:
        """The seconds to sum ``size`` bytes of gradients over all devices, if they do nothing else meanwhile.

        In a ring of n devices each device sends ``2 (n - 1) / n * size`` bytes (Patarasuk and Yuan, 2009).
        """
        return 2 * (self.count - 1) / self.count * size / self.rate

    def share(self, amount: float, least: float = 0.0) -> float:
        """The part of an amount that one device has: an equal share, but at least ``least``, and at most all."""
        return max(amount / self.count, min(least, amount))

    @property
    def facts(self) -> dict[str, str]:
        """The number of devices, and what the estimate assumes; empty for one device."""
        if self.is_alone:
            return {}
        machines = f" on {self.machines} machines" if self.machines > 1 else ""
        train = f"{self.count} train and {self.mining} mine" if self.mining else f"{self.count}{machines}"
        assumed = (
            "steps (with the scores of a ranker in training), encoding and exact search are divided evenly;"
            " updates, tokenising, other scores of pairs, BM25, faiss and files are not; gradients are sent at "
            f"{self.rate / 1e9:g} GB/s, after the backward pass alone"
        )
        return {"devices": f"{train}, each as fast as this one; memory is of one", "assumed": assumed}


ALONE = Devices()
FORMS = re.compile(r"(?:([1-9][0-9]{0,5})x)?([1-9][0-9]{0,5})(?:\+([1-9][0-9]{0,5}))?(?:@([0-9]+(?:\.[0-9]+)?))?")


def parse_devices(text: str) -> Devices:
    """The devices that a text names.

    ``8``; ``2x8``, eight on each of two machines; ``6+2``, six that train and two that mine. Each may end with
    ``@25``: a device sends 25 GB a second to another one.

    Raises
    ------
    SettingsError : the text has none of these forms.
    """
    found = FORMS.fullmatch(text) if text.isascii() else None
    devices = None
    if found:
        machines, each, mining, rate = found.groups()
        devices = Devices(int(machines or 1), int(each), int(mining or 0), float(rate) * 1e9 if rate else None)
    if devices is None or devices.count + devices.mining > MOST or devices.given == 0:
        what = f"'{text:.40}' is no number of devices"
        fix = "write 8; 2x8 for eight on each of two machines; 6+2: six train, two mine; 8@25 for 25 GB/s"
        raise SettingsError("BAD_DEVICES", what, fix)
    if devices.mining and devices.machines > 1:
        what = f"'{text:.40}' has several machines and a group that mines"
        raise SettingsError("BAD_DEVICES", what, "write the number of all that train, as in 16+2")
    return devices


class Overlap(NamedTuple):
    """The overlap of two groups that work at the same time, one of which mines and the other trains.

    Attributes
    ----------
    seconds : the seconds that are saved, because both groups work at the same time.
    version : the seconds that the group that mines takes for one version of the negatives.
    steps : the steps that the other group makes meanwhile.
    """

    seconds: float
    version: float
    steps: float

    @property
    def facts(self) -> dict[str, str]:
        """The age of the negatives when they come, and what the overlap saves, for people."""
        return {
            "a version of the negatives takes, about": f"{clock(self.version)}, {self.steps:.0f} training steps",
            "saved, as both groups work at the same time, about": clock(self.seconds),
        }


def overlap(
    seconds: Mapping[str, float], states: int, steps: int, trained: Mapping[str, float] | None = None
) -> Overlap:
    """How long two groups work at the same time.

    No training takes place while the first version is mined and while the final state is measured.

    Parameters
    ----------
    seconds : by stage; those in which the group that mines works, for all states together but the final one.
    states : the number of states: one mines the first version, one mines at each refresh, and one is final.
    steps : the number of all training steps.
    trained : models that are trained beside the retriever, and the share of their training that is not done before
        its own begins. They score pairs in a step, and re-rank the runs of a state.
    """
    trained = trained or {}
    by_trainers = ["train", "exchange gradients", *(f"score by {name}" for name in trained)]
    by_miners = ["encode", "search", *(f"re-rank by {name}" for name in trained)]
    training = sum(seconds.get(stage, 0.0) for stage in by_trainers)
    training += sum(share * seconds.get(f"train {name}", 0.0) for name, share in trained.items())
    version = sum(seconds[stage] for stage in by_miners if stage in seconds) / (states - 1)
    beside = min(training, version * max(states - 2, 0))
    return Overlap(beside, version, steps * version / training if training else 0.0)
