"""The scaling ladder: rungs, laws, the resolved recipe, and the loss fit. Imports nothing by itself."""
