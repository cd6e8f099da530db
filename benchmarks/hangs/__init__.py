"""Jobs that hang, each for a reason of its own, and what `probe hang` and other tools say of them."""
