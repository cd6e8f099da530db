"""What the recorder needs of the target's torch, which is looked up and never imported."""
