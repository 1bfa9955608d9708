"""Reading and writing models of Deeplearning4j, Keras and ONNX."""
