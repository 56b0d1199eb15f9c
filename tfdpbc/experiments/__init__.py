"""The experiments of papers A, B and C as data, and what runs them (`tfdpbc reproduce`, `tfdpbc compare --train`).

The declarations (`paper_a`, `paper_b`, `paper_c`) load nothing heavy; `statement` and `runner` do. Of all rooms only
the command line is above this one.
"""
