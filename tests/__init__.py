"""Tests; the folders mirror the package, ``support`` holds what tests share."""
