"""The provider as a juror: which duties it takes, and the machine of one duty."""
