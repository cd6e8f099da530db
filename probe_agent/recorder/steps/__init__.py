"""The step: its end, the time of its phases, modules and collectives, and the budget of sampling."""
