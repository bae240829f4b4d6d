"""Devices: the latest reading of each, and what the readings of an hour and of a day come to.

Readings arrive late, are corrected and are deleted; every row follows. The rows of hours say when they expire, so a
reading that is older than they get is to be left as it is: its hour is gone.
"""

from datetime import datetime, timedelta

from streamfold import Average, Count, Item, Key, Latest, Max, Min, Router, Row

READING = Key("DEVICE#{device_id}", "READING#{at:datetime.seconds}")
LATEST = Key("DEVICE#{device_id}", "LATEST")
HOUR = Key("DEVICE#{device_id}", "HOUR#{hour}")
DAY = Key("DEVICE#{device_id}", "DAY#{day:date}")

HOURS_KEPT = timedelta(days=30)

router = Router()


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
