"""The worker that needs only a budget: it registers, volunteers, downloads, serves and moves by itself.

`kvasir.worker.__main__` enters by `start`; `plan` decides and is pure.
It never computes an expert: `kvasir.worker.serving` does.
"""
