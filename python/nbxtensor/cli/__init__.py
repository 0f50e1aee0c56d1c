"""The commands of ``python -m nbxtensor``."""
