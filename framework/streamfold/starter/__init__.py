"""A new application: its files, made of templates."""
