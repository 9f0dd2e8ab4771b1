"""The report of an experiment: facts from its folder, charts of them, and the page that shows both."""
