"""Importing this reads all catalogues, so that processes forked from one that has imported it find them read."""

from fedwinnow import catalogue

for family in catalogue.FAMILIES:
    catalogue.entries(family)
