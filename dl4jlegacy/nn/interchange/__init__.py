"""Models of Deeplearning4j, Keras and ONNX, read and written."""
