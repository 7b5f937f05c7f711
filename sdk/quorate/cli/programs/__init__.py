"""Commands and options about local code: files, sweeps, images, and a check before ordering."""
