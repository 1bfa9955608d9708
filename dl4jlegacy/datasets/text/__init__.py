"""Texts: characters to learn and words that classify."""
