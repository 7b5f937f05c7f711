"""What other coordinators say of providers: their public logs, checked and folded here."""
