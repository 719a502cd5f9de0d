"""The audit's report: one document, written as JSON, HTML and Markdown."""
