"""Values that are not finite: found in a job of two ranks, and not in a healthy one."""
