"""Numbers as DynamoDB holds them: 38 digits, exactly."""

from decimal import Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow, Rounded, Underflow
from typing import cast

from streamfold.errors import HandlerError, told

DIGITS_MAX = 38
WHOLE_MAX = 10**DIGITS_MAX - 1
WHOLE_MIN = -WHOLE_MAX
EXPONENT_MAX, EXPONENT_MIN = 125, -130
"""Numbers of DynamoDB: 38 digits, 1E-130 to 9.99E+125 (Developer Guide, HowItWorks.NamingRulesDataTypes)."""
EXACT = Context(prec=DIGITS_MAX, traps=[Inexact, Rounded, InvalidOperation, DivisionByZero, Overflow, Underflow])
"""The context of all arithmetic in handlers and planner: what would need more than 38 digits raises, never rounds."""
HOW_TO_ROUND = "To round on purpose: divide(a, b, places=2) or rounded(n, places=2), of streamfold."
"""The end of each message about a number that is not exact; docs/numbers.md has the rest."""
WIDE = Context(prec=300, traps=[Inexact, InvalidOperation])
"""Holds every sum and difference of two numbers exactly; one with more than 38 digits is refused when it is written."""
Number = int | Decimal


def decode_number(text: str) -> int | Decimal:
    """The number of a text, exactly; whole numbers as ``int``."""
    return int(text) if text.isdigit() or (text[1:].isdigit() and text[0] == "-") else Decimal(text)


def number_text(value: int | Decimal) -> str:
    """The one spelling of a number: ``1.5``, ``100``, ``0``.

    Raises ``HandlerError`` where DynamoDB could not hold it.
    """
    if type(value) is int and WHOLE_MIN <= value <= WHOLE_MAX:
        return f"{value}"
    if isinstance(value, int):  # too large, or of a class with a text of its own
        value = Decimal(int(value))
    text = str(value)
    # The usual number is its own text, less zeros at its end; exponents, NaN and Infinity hold a capital letter.
    if len(text) <= DIGITS_MAX and "E" not in text and "N" not in text and "I" not in text:
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text == "-0" else text
    if not value.is_finite():
        raise HandlerError(f"Number {told(value)} cannot be stored: expected a finite number.")
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    bare = text.rstrip("0")
    if not bare:
        return "0"
    shift = cast("int", exponent) + len(text) - len(bare)
    if len(bare) > DIGITS_MAX or not EXPONENT_MIN <= shift + len(bare) - 1 <= EXPONENT_MAX:
        raise HandlerError(
            f"Number {told(f'{value!s:.60}')} cannot be stored: DynamoDB holds {DIGITS_MAX} digits, from "
            f"1E{EXPONENT_MIN} to 9.99E+{EXPONENT_MAX}. {HOW_TO_ROUND}"
        )
    return format(Decimal((sign, tuple(map(int, bare)), shift)), "f")
