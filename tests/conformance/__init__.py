"""One list of scenarios, judged by the reference, that every back-end must pass.

`scenarios` has the list, `engines` what differs between the back-ends, and `__main__` runs scenarios on them, each back-end in a
process of its own. A new back-end is one more entry in `engines.ENGINES`; a new feature is one more scenario.
"""
