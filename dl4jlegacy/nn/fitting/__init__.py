"""Training beyond one ``fit``: early stopping, transfer learning, gradient checks, model savers."""
