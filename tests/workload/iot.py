"""Devices: sensors that report, are silent and send what they kept, and readings that somebody corrects or deletes."""

from datetime import timedelta
from decimal import Decimal

from tests.workload import Workload, change, key, plain

STEPS = 330
DEVICES = ("cellar", "roof", "kiln", "greenhouse", "cold-store")
SILENCE_MINUTES_MAX = 180


class Sensors(Workload):
    """The site's own view of its table, so that every next step follows from the seed alone."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.readings = {}
        self.battery = dict.fromkeys(DEVICES, 100)

    def any_device(self):
        return self.random.choice(DEVICES)

    def any_reading(self):
        return self.random.choice(sorted(self.readings))

    def celsius(self):
        return plain(Decimal(self.random.randint(-250, 450)).scaleb(-1))

    def reading(self, device, at):
        """What a device measured at a time. Batteries run down, now and then a device gets a new one."""
        self.battery[device] = self.battery[device] - 1 or 100
        self.readings[device, at] = place = key(f"DEVICE#{device}", f"READING#{at}")
        return {**place, "celsius": self.celsius(), "battery": self.battery[device]}

    def report(self):
        self.table.put_item(Item=self.reading(self.any_device(), self.clock.advance(20)))

    def send_what_was_kept(self):
        """A device was out of reach: its readings of the last hours come in one batch, the newest first."""
        device, now = self.any_device(), self.clock.now
        minutes = sorted(self.random.sample(range(SILENCE_MINUTES_MAX), k=self.random.randint(2, 6)))
        with self.table.batch_writer() as batch:
            for ago in minutes:
                at = f"{now - timedelta(minutes=ago):%Y-%m-%dT%H:%M:%SZ}"
                if (device, at) not in self.readings:
                    batch.put_item(Item=self.reading(device, at))

    def correct(self):
        if self.readings:
            self.table.update_item(**change(self.readings[self.any_reading()], celsius=self.celsius()))

    def delete(self):
        if self.readings:
            self.table.delete_item(Key=self.readings.pop(self.any_reading()))

    def delete_last(self):
        """Deletes the latest reading of a device, so that the one before it is the latest."""
        device = self.any_device()
        if mine := sorted(name for name in self.readings if name[0] == device):
            self.table.delete_item(Key=self.readings.pop(mine[-1]))


STEP_WEIGHTS = {
    Sensors.report: 20,
    Sensors.send_what_was_kept: 2,
    Sensors.correct: 5,
    Sensors.delete: 3,
    Sensors.delete_last: 3,
}


def run(table, seed):
    """Takes as many steps as ``STEPS`` says."""
    Sensors(table, seed).take_steps(STEP_WEIGHTS, STEPS)
