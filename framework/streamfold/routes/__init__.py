"""What is declared: routes, what a handler may yield, and what declarations show to be wrong. Knows no kind."""
