"""`manage.py up` and `demo`: the whole service as child processes of one terminal.

The management commands enter by `service`.
It is not part of the service: nothing else imports it.
"""
