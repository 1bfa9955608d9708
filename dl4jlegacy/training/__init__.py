"""A training run from its Conf: data, first model, execution, evaluation passes, exported models."""
