"""Which documents have which words: full text in the database, SQLite's (FTS5) or PostgreSQL's (tsvector).

A document is the words that it is found by. What a word is, is decided above (they are letters and digits
alone), and so is the order of what is found: each database would have its own. An edition is all documents of
one state of the site, under the digest of their words. It is written once and never changed. So what is asked
of an edition is never out of date, and processes of an old and a new release are not in each other's way.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db import connection, models, transaction
from django.utils import timezone

KEPT = 8  # editions: of all languages, and of the releases that may be running side by side

# The table is made in migration 0007, in each database's own way. Words go in and are looked for as they are:
# neither database's idea of a word, or of English, gets at them.
INSERT = {
    "sqlite": "INSERT INTO workers_search (edition, number, words) VALUES (%s, %s, %s)",
    "postgresql": "INSERT INTO workers_search (edition, number, words) "
    "VALUES (%s, %s, array_to_tsvector(string_to_array(%s, ' ')))",
}
SELECT = {
    "sqlite": "SELECT number FROM workers_search WHERE words MATCH %s AND edition = %s ORDER BY number",
    "postgresql": "SELECT number FROM workers_search WHERE words @@ %s::tsquery AND edition = %s "
    "ORDER BY number",
}
DELETE = "DELETE FROM workers_search WHERE edition = %s"


class SearchEdition(models.Model):
    """There from when all of its documents are."""

    digest = models.CharField(primary_key=True, max_length=64)
    built_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-built_at", "digest")

    def __str__(self) -> str:
        return self.digest[:12]


@dataclass(frozen=True)
class Asked:
    """Any of these words will do, or any that begins with `prefix`."""

    words: tuple[str, ...]
    prefix: str = ""


def keep(digest: str, documents: Iterable[Iterable[str]]) -> None:
    """Store an edition, unless it is there. The number of a document is its place."""
    if SearchEdition.objects.filter(pk=digest).exists():
        return
    with transaction.atomic():
        # Whoever else is at it has the row; this waits for them.
        if not SearchEdition.objects.get_or_create(digest=digest)[1]:
            return
        rows = [(digest, number, " ".join(words)) for number, words in enumerate(documents)]
        old = list(SearchEdition.objects.values_list("pk", flat=True)[KEPT:])
        with connection.cursor() as cursor:
            for gone in (digest, *old):
                cursor.execute(DELETE, [gone])
            cursor.executemany(INSERT[connection.vendor], rows)
        SearchEdition.objects.filter(pk__in=old).delete()


def holding(digest: str, asked: Sequence[Asked], *, every: bool = True) -> list[int]:
    """The numbers of the documents with a word of each of `asked`, or else of any of them."""
    query = (_tsquery if connection.vendor == "postgresql" else _match)(asked, every)
    with connection.cursor() as cursor:
        cursor.execute(SELECT[connection.vendor], [query, digest])
        return [number for (number,) in cursor.fetchall()]


def _match(asked: Sequence[Asked], every: bool) -> str:
    """In FTS5's language, where what is in quotes is nothing but words."""
    terms = [
        [*(f'"{word}"' for word in each.words), *([f'"{each.prefix}"*'] if each.prefix else [])]
        for each in asked
    ]
    return (" AND " if every else " OR ").join(f"({' OR '.join(term)})" for term in terms)


def _tsquery(asked: Sequence[Asked], every: bool) -> str:
    terms = [
        [*(f"'{word}'" for word in each.words), *([f"'{each.prefix}':*"] if each.prefix else [])]
        for each in asked
    ]
    return (" & " if every else " | ").join(f"({' | '.join(term)})" for term in terms)
