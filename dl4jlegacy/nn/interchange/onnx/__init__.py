"""Export of networks to ONNX."""
