"""Evaluations of a trained run: Paloma and the language-model evaluation harness."""
