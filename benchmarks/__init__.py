"""How fast things are, measured on the machine at hand: `python -m benchmarks [NAME] [--write]`."""
