"""Rounding on purpose. Arithmetic in handlers is exact or refused, unless these two functions round it."""

from decimal import ROUND_HALF_EVEN, Context, Decimal, DecimalException, DivisionByZero, InvalidOperation
from typing import Any

from streamfold.errors import HandlerError, shown
from streamfold.records.numbers import DIGITS_MAX, HOW_TO_ROUND, Number

LONG = Context(prec=300, traps=[])
"""A quotient of two numbers of 38 digits that is no tie differs from every tie before its 80th digit: a quotient of so
many digits rounds as the exact one would."""


def divide(dividend: Number, divisor: Number, /, *, places: int, rounding: str = ROUND_HALF_EVEN) -> Decimal:
    """A quotient, rounded once, to so many places: ``divide(2, 3, places=2)`` is ``Decimal("0.67")``.

    ``rounding`` is one of decimal's, ``decimal.ROUND_HALF_UP``; the default rounds a tie to the even digit. Raises
    ``HandlerError`` for a divisor of 0, for a float, and for a quotient of more than 38 digits.
    """
    said = f"divide({shown(dividend)}, {shown(divisor)}, places={shown(places)})"
    above, below = _exact(dividend, said), _exact(divisor, said)
    if not below:
        raise HandlerError(f"{said} divides by zero: yield nothing for such an item, or say what stands for it.")
    return _rounded(LONG.divide(above, below), places, rounding, said)


def rounded(value: Number, /, *, places: int, rounding: str = ROUND_HALF_EVEN) -> Decimal:
    """A number with so many places: ``rounded(Decimal("2.345"), places=2)`` is ``Decimal("2.34")``.

    A whole number has them too: ``f"{rounded(3, places=2)}"`` is ``3.00``. Takes and raises what ``divide`` does.
    """
    said = f"rounded({shown(value)}, places={shown(places)})"
    return _rounded(_exact(value, said), places, rounding, said)


def inexact_text(error: DecimalException) -> str:
    """What a handler did whose arithmetic is refused, and what to do instead."""
    signals = error.args[0] if error.args and isinstance(error.args[0], list) else [type(error)]
    names = {signal.__name__ for signal in signals}
    if isinstance(error, DivisionByZero) or "DivisionUndefined" in names:
        return "divided by zero: yield nothing for such an item, or say what stands for it."
    if "ConversionSyntax" in names:
        return "made a Decimal of text that is no number: yield nothing for such an item."
    what = type(error).__name__
    return (
        f"computed a number that {DIGITS_MAX} digits cannot hold exactly ({what}). Results are never rounded on the "
        f"way. {HOW_TO_ROUND}"
    )


def _exact(value: Any, said: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise HandlerError(f"{said} takes {shown(value)} of type {type(value).__name__}: expected int or Decimal.")
    if isinstance(value, Decimal) and not value.is_finite():
        raise HandlerError(f"{said} takes {shown(value)}: expected a finite number.")
    return Decimal(value)


def _rounded(value: Decimal, places: Any, rounding: str, said: str) -> Decimal:
    if isinstance(places, bool) or not isinstance(places, int) or not 0 <= places < DIGITS_MAX:
        raise HandlerError(f"{said} has places={shown(places)}: expected a whole number from 0 to {DIGITS_MAX - 1}.")
    context = Context(prec=DIGITS_MAX, rounding=rounding, traps=[InvalidOperation])
    try:
        found = value.quantize(Decimal(1).scaleb(-places), context=context)
    except InvalidOperation:
        raise HandlerError(f"{said} has more than {DIGITS_MAX} digits: expected fewer places.") from None
    return found or abs(found)  # no minus before a zero
