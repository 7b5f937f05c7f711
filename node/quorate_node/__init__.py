"""The provider daemon of Quorate and its commands."""
