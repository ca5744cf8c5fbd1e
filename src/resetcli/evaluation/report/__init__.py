"""``report.html``: one page of a run that needs nothing else, made from the files of its folder (see `write`)."""
