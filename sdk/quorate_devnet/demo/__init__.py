"""The main job, `quorate devnet demo`: two clients, five providers of which one lies, and
everything that follows from it.
"""
