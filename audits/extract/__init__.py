"""Claims straight from fetched text. `extraction.extract` is the way in; `python -m audits.extract` writes a file."""
