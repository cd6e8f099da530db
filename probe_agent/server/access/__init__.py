"""Access to a host server: tokens and roles, quotas of readers, the guard in front of the app, the audit of actions."""
