"""Evaluations: classification, binary, regression, ROC curves, calibration."""

__all__: list[str] = []
