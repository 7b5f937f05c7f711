"""Files and downloads of the public logs of coordinators."""
