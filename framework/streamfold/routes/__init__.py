"""Declarations: routes, the effects that a handler may yield, and the checks of declarations. Knows no kind."""
