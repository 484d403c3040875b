"""Plans made of steps.

- ``steps``: launches and products in order, as a plan.
- ``channel_sums``: launches that sum the channels of a result.
- ``normalised``: the launch that writes a norm of the input.
"""
