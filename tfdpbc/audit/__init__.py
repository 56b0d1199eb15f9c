"""The empirical audit: trains on neighbouring data sets many times and asks whether an attack beats the stated guarantee.

What it shows is a lower bound on what is given away. It can find a mistake, and it never proves that there is none.
"""
