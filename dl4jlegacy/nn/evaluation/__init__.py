"""Evaluations: classification, binary, regression, ROC curves, calibration."""
