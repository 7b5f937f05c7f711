"""One execution of a job: assigning it, what its provider answers, and what follows from that."""
