"""Declarations: routes, effects that a handler may yield, and checks of both. Knows no kind."""
