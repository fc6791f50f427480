"""Changes of the tables, in order; made by `manage.py makemigrations`."""
