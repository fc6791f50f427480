"""Tensor operations of the dense path behind one interface, and the devices that compute them.

The model enters by `interface`.
It never knows what a layer is for.
"""
