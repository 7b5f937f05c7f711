"""Matching jobs with offers: the index of offers and the queue of jobs."""
