"""Helpers that tests of several folders share: `from support.waiting import until`."""
