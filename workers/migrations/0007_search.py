"""The full text of what can be searched: a table of each database's own kind (see workers/search.py)."""

import django.utils.timezone
from django.db import migrations, models

TABLE = "workers_search"
# FTS5 splits at spaces and keeps accents, since words come as they are to be found.
SQLITE = [
    f"CREATE VIRTUAL TABLE {TABLE} USING fts5(edition UNINDEXED, number UNINDEXED, words, "
    "tokenize = 'unicode61 remove_diacritics 0', prefix = '2 3 4')",
]
POSTGRES = [
    f"CREATE TABLE {TABLE} (edition varchar(64) NOT NULL, number integer NOT NULL, words tsvector NOT NULL, "
    "PRIMARY KEY (edition, number))",
    f"CREATE INDEX {TABLE}_words ON {TABLE} USING gin (words)",
]


def create(apps, schema_editor):
    for statement in POSTGRES if schema_editor.connection.vendor == "postgresql" else SQLITE:
        schema_editor.execute(statement)


def drop(apps, schema_editor):
    schema_editor.execute(f"DROP TABLE {TABLE}")


class Migration(migrations.Migration):

    dependencies = [
        ('workers', '0006_least_dtype'),
    ]

    operations = [
        migrations.CreateModel(
            name='SearchEdition',
            fields=[
                ('digest', models.CharField(max_length=64, primary_key=True, serialize=False)),
                ('built_at', models.DateTimeField(default=django.utils.timezone.now)),
            ],
            options={
                'ordering': ('-built_at', 'digest'),
            },
        ),
        migrations.RunPython(create, drop),
    ]
