"""Manners of a guest: what keeps the recorder's threads, failures and leftovers out of the job's way."""
