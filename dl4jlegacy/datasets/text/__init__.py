"""Text data sets, as characters or words, and counting of unknown words."""
