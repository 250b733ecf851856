"""The bare-bones peer: Django view -> row -> on_commit -> Celery -> row -> answer, and nothing else.

What the product's overhead is compared with. No validation, no errors, no files, no heartbeat: any service
of this kind does at least this much.
"""
