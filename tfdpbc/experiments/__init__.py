"""The experiments of papers A and B as data, and what runs them (`tfdpbc reproduce`, `tfdpbc compare --train`).

The declarations (`paper_a`, `paper_b`) load nothing heavy; `statement` and `runner` do. Of all rooms only the command line
is above this one.
"""
