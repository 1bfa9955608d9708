"""Trained models behind HTTP: the same answers as ``dl4j predict``."""
