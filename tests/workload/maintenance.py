"""Devices that somebody should look at: sensors become noisy or silent, readings come late, are corrected and deleted.

Devices are registered, moved, given another tolerance and removed, some while they report, and one reports that nobody
registered.
"""

from datetime import timedelta
from decimal import Decimal

from tests.workload import change, key, plain
from tests.workload.iot import DEVICES, Sensors

STEPS = 360
ROOMS = ("cellar", "hall", "roof", "yard")
UNREGISTERED = "kiln"
REST_MINUTES_MAX = 12 * 60


class Maintenance(Sensors):
    """A site whose devices have items of their own, and report about the same value as long as they are well."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.registered = set()

    def celsius(self):
        spread = self.random.choice((4, 4, 4, 4, 120))
        return plain(Decimal(200 + self.random.randint(-spread, spread)).scaleb(-1))

    def device_key(self, device):
        return key(f"DEVICE#{device}", "METADATA")

    def tolerance(self):
        return plain(Decimal(self.random.choice(("0.5", "5", "15"))))

    def register(self):
        if missing := sorted(set(DEVICES) - self.registered - {UNREGISTERED}):
            device = self.random.choice(missing)
            self.registered.add(device)
            item = {"room": self.random.choice(ROOMS), "tolerance": self.tolerance(), "at": self.clock.advance(20)}
            self.table.put_item(Item={**self.device_key(device), **item})

    def amend_device(self, **values):
        if self.registered:
            device = self.random.choice(sorted(self.registered))
            self.table.update_item(**change(self.device_key(device), **values))

    def move(self):
        self.amend_device(room=self.random.choice(ROOMS))

    def tolerate(self):
        self.amend_device(tolerance=self.tolerance())

    def remove_device(self):
        """A device's item is removed, and its readings stay."""
        if self.registered:
            device = self.random.choice(sorted(self.registered))
            self.registered.remove(device)
            self.table.delete_item(Key=self.device_key(device))

    def replace_battery(self):
        """A change of a reading that no row shows."""
        if self.readings:
            self.table.update_item(**change(self.readings[self.any_reading()], battery=100))

    def report_often(self):
        """One device, a dozen times: the readings before are no more among its last ten."""
        device = self.any_device()
        for _ in range(12):
            self.table.put_item(Item=self.reading(device, self.clock.advance(3)))

    def rest(self):
        """Nothing is written for up to half a day."""
        self.clock.advance(REST_MINUTES_MAX)

    def clear(self):
        """All readings of a device are deleted."""
        device = self.any_device()
        for name in sorted(name for name in self.readings if name[0] == device):
            self.table.delete_item(Key=self.readings.pop(name))


STEP_WEIGHTS = {
    Maintenance.report: 20,
    Maintenance.report_often: 1,
    Maintenance.send_what_was_kept: 4,
    Maintenance.correct: 5,
    Maintenance.delete: 3,
    Maintenance.delete_last: 4,
    Maintenance.replace_battery: 2,
    Maintenance.register: 5,
    Maintenance.move: 2,
    Maintenance.tolerate: 4,
    Maintenance.remove_device: 2,
    Maintenance.rest: 7,
    Maintenance.clear: 1,
}


def run(table, seed):
    """Takes as many steps as ``STEPS`` says. Behind them a device reports after seven hours in which none did."""
    site = Maintenance(table, seed)
    site.take_steps(STEP_WEIGHTS, STEPS)
    site.clock.now += timedelta(hours=7)
    site.report()
