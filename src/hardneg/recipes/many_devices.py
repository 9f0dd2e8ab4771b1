"""What training takes on several devices like the one that was timed: on paper, from what it takes on one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hardneg.errors import SettingsError

WITHIN = 10e9  # bytes a second that a device sends to another one of its machine: assumed, as over PCIe
BETWEEN = 1.25e9  # and to one of another machine: assumed, as over Ethernet of 10 Gbit/s
MOST = 100_000


@dataclass(frozen=True)
class Devices:
    """Equal devices that train together, as many on each machine."""

    machines: int = 1
    each: int = 1  # devices of a machine

    @property
    def count(self) -> int:
        """The number of devices in all."""
        return self.machines * self.each

    @property
    def rate(self) -> float:
        """Bytes a second that pass from one device to the next where that is slowest; assumed."""
        return WITHIN if self.machines == 1 else BETWEEN

    def exchange_seconds(self, size: float) -> float:
        """Seconds in which ``size`` bytes of gradients are summed, if nothing else is done meanwhile.

        In a ring of n devices each sends ``2 (n - 1) / n`` times that (Patarasuk and Yuan, 2009).
        """
        return 2 * (self.count - 1) / self.count * size / self.rate

    def share(self, amount: float, least: float = 0.0) -> float:
        """The part of an amount that one device has: an equal one, but no less than ``least``, or all of it."""
        return max(amount / self.count, min(least, amount))

    @property
    def facts(self) -> dict[str, str]:
        """The number of devices, and what the estimate takes for granted; nothing for one."""
        if self.count == 1:
            return {}
        machines = f" on {self.machines} machines" if self.machines > 1 else ""
        assumed = (
            "steps, encoding and exact search are divided evenly; updates, tokenising, scores of pairs, faiss and "
            f"files are not; gradients pass at {self.rate / 1e9:g} GB/s, none of it while a backward pass runs"
        )
        return {
            "devices": f"{self.count}{machines}, each as fast as this one; memory is of one",
            "assumed": assumed,
        }


ALONE = Devices()


def parse_devices(text: str) -> Devices:
    """The devices that ``8`` or ``2x8`` (eight on each of two machines) names.

    Raises
    ------
    SettingsError : it is neither.
    """
    found = re.fullmatch(r"(?:([1-9][0-9]{0,5})x)?([1-9][0-9]{0,5})", text)
    devices = Devices(int(found[1] or 1), int(found[2])) if found else None
    if devices is None or devices.count > MOST:
        what = f"'{text:.40}' is no number of devices"
        raise SettingsError("BAD_DEVICES", what, "write 8, or 2x8 for eight on each of two machines")
    return devices
