"""Evidence of a stall: what the job was doing, and a snapshot of it in the target's folder. Runs on the recorder's
thread, once a stall."""
