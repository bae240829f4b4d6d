"""Key values as text whose order is DynamoDB's order of the values."""

from decimal import Decimal

from streamfold.keys.key_part import KeyValue
from streamfold.records.numbers import number_text

EXPONENT_OFFSET = 500
NINES = str.maketrans("0123456789", "9876543210")


def sortable(value: KeyValue | None) -> str:
    """Text for a key value; ``""`` for none. Types do not mix within one key attribute."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else _number(Decimal(number_text(value)))


def _number(value: Decimal) -> str:
    if not value:
        return "1"
    digits = "".join(map(str, value.as_tuple().digits)).rstrip("0")
    text = f"{value.adjusted() + EXPONENT_OFFSET:03d}{digits}"
    # A negative number of more digits is smaller: complement, and end above every digit.
    return f"2{text}" if value > 0 else f"0{text.translate(NINES)}~"
