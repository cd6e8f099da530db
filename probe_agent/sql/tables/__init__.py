"""Tables: live ones by schema (`python`, `torch`, `process`, `gpu`, `audit`), all declarations, notes on empty ones."""
