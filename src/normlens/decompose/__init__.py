"""Pure tensor mathematics: attention blocks taken apart into the vectors that each position contributes.

Nothing here knows what a model is. Imports torch and nothing else of ours.
"""
