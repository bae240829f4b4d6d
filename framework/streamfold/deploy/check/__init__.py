"""``streamfold template --check``: the differences between a template and what follows from the routes."""
