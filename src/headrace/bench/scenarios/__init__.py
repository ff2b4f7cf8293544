"""Scenarios: the parameters of a measurement, read from the TOML files of this folder or of the user."""
