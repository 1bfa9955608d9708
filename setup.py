"""Metadata is in setup.cfg."""

from setuptools import setup

setup()
