"""Serving of trained models over HTTP, with the same answers as ``dl4j predict``."""
