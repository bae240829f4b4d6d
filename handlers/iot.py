"""Devices: the latest reading of each, and what the readings of an hour and of a day come to.

Readings arrive late, are corrected and are deleted; every row follows. The rows of hours say when they expire, so a
reading that is older than they get is to be left as it is: its hour is gone.

Devices that somebody should look at are an application of their own, whose rows are made of their last readings
together: ``streamfold replay events/iot/maintenance.jsonl --app handlers.iot:app`` runs it.
"""

from datetime import datetime, timedelta

from streamfold import App, Average, Count, Item, Key, Latest, Max, Min, Newest, Now, Parts, Router, Row

DEVICE = Key("DEVICE#{device_id}", "METADATA")
READING = Key("DEVICE#{device_id}", "READING#{at:datetime.seconds}")
LATEST = Key("DEVICE#{device_id}", "LATEST")
HOUR = Key("DEVICE#{device_id}", "HOUR#{hour}")
DAY = Key("DEVICE#{device_id}", "DAY#{day:date}")
NOISY = Key("MAINTENANCE#NOISY", "DEVICE#{device_id}")
SILENT = Key("MAINTENANCE#SILENT", "DEVICE#{device_id}")

HOURS_KEPT, SILENT_AFTER = timedelta(days=30), timedelta(hours=6)

router, maintenance = Router(), Router()


@router.view(READING, into=LATEST)
def latest_reading(reading: Item, at: datetime) -> Row:
    shown = {"at": at, "celsius": reading["celsius"], "battery": reading["battery"]}
    return Row(latest=Latest(shown, by=at), readings=Count())


@router.view(READING, into=HOUR)
def hourly(reading: Item, at: datetime) -> Row:
    end = at.replace(minute=0, second=0) + timedelta(hours=1)
    return Row(
        hour=f"{at:%Y-%m-%dT%H}",
        lowest=Min(reading["celsius"]),
        highest=Max(reading["celsius"]),
        celsius=Average(reading["celsius"]),
        readings=Count(),
        expires=Max(int((end + HOURS_KEPT).timestamp())),  # the table's time-to-live attribute
    )


@router.view(READING, into=DAY)
def daily(reading: Item, at: datetime) -> Row:
    return Row(
        day=at.date(),
        lowest=Min(reading["celsius"]),
        highest=Max(reading["celsius"]),
        celsius=Average(reading["celsius"]),
        readings=Count(),
    )


@maintenance.index(DEVICE, parts=[Newest(READING, 10, reads=["celsius"])], into=NOISY)
def noisy_devices(device: Item, parts: Parts) -> Row | None:
    celsius = sorted(reading["celsius"] for reading in parts(READING))
    if not celsius or celsius[-1] - celsius[0] <= device["tolerance"]:
        return None
    return Row(room=device["room"], spread=celsius[-1] - celsius[0], median=celsius[len(celsius) // 2])


@maintenance.index(DEVICE, parts=[Newest(READING, 1, reads=[])], optional=True, into=SILENT)  # also of unknown devices
def silent_devices(device: Item | None, parts: Parts, now: Now) -> Row | None:
    last = parts.one(READING).key.get("at")
    if last is None or not now.passed(last, after=SILENT_AFTER):
        return None
    return Row(since=last, room=device["room"] if device else "unknown")


app = App("maintenance", routers=[maintenance])
lambda_handler = app.lambda_handler
jobs_handler = app.jobs_handler
verify_handler = app.verify_handler
