"""SQL that reads a table's history: `SELECT … FROM db.t FOR TAG 'x'`, and the same at a version or an instant, become
Spark SQL on the live or the cold catalog. Also the statement that tags a snapshot.

Spark's own parser finds tables and their `AS OF`. Only `FOR TAG`, which Spark does not support, is found by its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.catalogs.identifier import Identifier, parse, parse_in
from artemis_lifecycle.cold_tier.reads import Route, Selector
from artemis_lifecycle.config.durations import parse_duration
from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.metadata.types import FOREVER_MS
from artemis_lifecycle.spark.sql import Token, literal, name, tokens, value_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TAG_FORM = "TAG SNAPSHOT <id> [OF <namespace.table>] AS '<name>' WITH RETENTION FOREVER | <n> DAYS"

_UNITS = {"MILLISECOND": "ms", "SECOND": "s", "MINUTE": "m", "HOUR": "h", "DAY": "d", "WEEK": "w", "YEAR": "y"}

# Keywords that begin a read-only statement.
_READS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")

TRAVELLING = frozenset({"files", "data_files", "delete_files", "entries", "manifests", "partitions"})
"""Iceberg's metadata tables with the contents of one snapshot. The others show the table's current state or its
history."""


@dataclass(frozen=True)
class Source(Route):
    """A table that a query reads, and its route. `clause` has the original spelling; empty for the table's current
    state."""

    table: str = field(kw_only=True)
    clause: str = field(default="", kw_only=True)

    @classmethod
    def of(cls, table: str, route: Route, clause: str = "") -> Source:
        return cls(**vars(route), table=table, clause=clause)


@dataclass(frozen=True)
class Query:
    """A query as given, and the Spark SQL that answers it."""

    sql: str
    spark_sql: str
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True)
class TagStatement:
    """A parsed `TAG SNAPSHOT …`. `table` is None if the statement has none; `retain` None means forever.

    `spark_sql` is the nearest Spark statement: Spark's RETAIN counts from the snapshot's commit, in whole minutes, and
    has no FOREVER.
    """

    sql: str
    snapshot_id: int
    name: str
    retain: timedelta | None
    table: str | None
    spark_sql: str = ""


def parse_tag(sql: str) -> TagStatement | None:
    """Parse `sql` as a TAG statement; None if it begins with another word. Raises BadInput with the correct form."""
    found = tokens(sql)
    if not found or not found[0].is_word("TAG"):
        return None
    rest = _Rest(sql, [*found])
    rest.word("TAG")
    rest.word("SNAPSHOT")
    snapshot_id = int(rest.take("a snapshot's id", "number").text)
    table = None
    if rest.next_is("OF", "ON", "IN"):
        rest.skip()
        if rest.next_is("TABLE"):
            rest.skip()
        table = rest.table()
    rest.word("AS")
    named = rest.take("the tag's name, as a string", "string", "quoted")
    retain = None
    if rest.next_is("WITH"):
        rest.skip()
        rest.word("RETENTION")
        retain = rest.retention()
    rest.end()
    tag = value_of(named)
    if not tag:
        raise rest.error("the tag's name is empty")
    return TagStatement(sql, snapshot_id, tag, retain, table)


class _Rest:
    """The rest of a statement."""

    def __init__(self, sql: str, left: list[Token]) -> None:
        self.sql = sql
        self.left = left

    def error(self, what: str) -> BadInput:
        return BadInput(f"This is not a TAG statement: {what}", hint=f"use {TAG_FORM}")

    def next_is(self, *words: str) -> bool:
        return bool(self.left) and self.left[0].is_word(*words)

    def skip(self) -> Token:
        return self.left.pop(0)

    def take(self, what: str, *kinds: str) -> Token:
        if not self.left or self.left[0].kind not in kinds:
            raise self.error(f"{what} must follow, not {self._next()}")
        return self.left.pop(0)

    def word(self, word: str) -> None:
        if not self.next_is(word):
            raise self.error(f"{word} must follow, not {self._next()}")
        self.left.pop(0)

    def _next(self) -> str:
        return self.left[0].text if self.left else "the end"

    def table(self) -> str:
        parts = [self._part()]
        while self.left and self.left[0].text == ".":
            self.left.pop(0)
            parts.append(self._part())
        return str(Identifier.of(parts))

    def _part(self) -> str:
        token = self.take("the table's name", "word", "quoted")
        return value_of(token) if token.kind == "quoted" else token.text

    def retention(self) -> timedelta | None:
        if self.next_is("FOREVER"):
            self.skip()
            return None
        first = self.take("FOREVER, or a duration such as 90 DAYS,", "number", "string", "word")
        text = value_of(first) if first.kind == "string" else first.text
        if first.kind == "number":
            unit = self.take("the unit of the retention", "word").text.upper()
            short = _UNITS.get(unit.removesuffix("S"))
            if short is None:
                raise self.error(f"{unit} is not a unit; use one of {', '.join(f'{known}S' for known in _UNITS)}")
            text += short
        try:
            duration = parse_duration(text)
        except ValueError as error:
            raise self.error(str(error)) from error
        if not duration:
            raise self.error("a retention of zero keeps nothing")
        return duration

    def end(self) -> None:
        while self.left and self.left[0].text == ";":
            self.left.pop(0)
        if self.left:
            raise self.error(f"unexpected {self._next()} at the end")


def spark_tag(statement: TagStatement, table: str, catalog: str, max_ref_age_ms: int) -> TagStatement:
    """Return `statement` on `table`, with the nearest Spark SQL."""
    minutes = -(-max_ref_age_ms // 60_000)
    retain = "" if max_ref_age_ms >= FOREVER_MS else f" RETAIN {minutes} MINUTES"
    target = f"ALTER TABLE {parse_in(table, catalog).sql(catalog)} CREATE TAG {name(statement.name)}"
    return replace(statement, table=table, spark_sql=f"{target} AS OF VERSION {statement.snapshot_id}{retain}")


@dataclass(frozen=True)
class Tables:
    """What `translate` needs from the catalogs: their names in Spark, the spelling under which the live catalog lists a
    table (None if it has no such table), and the route of a read. `named` are the other live catalogs, each with its
    `listed_as`."""

    live: str
    cold: str
    listed_as: Callable[[Identifier], str | None]
    route: Callable[[str, Selector], Route]
    named: Mapping[str, Callable[[Identifier], str | None]] = field(default_factory=dict)


def translate(spark: SparkSession, sql: str, tables: Tables, as_of: datetime | None = None) -> Query:
    """Return the Spark SQL that answers `sql`. Names of live tables get their catalog. Each table that is read at a
    tag, a version or an instant is read from the tier that has it. Tables without such a clause are read `as_of`, if
    that is given.

    Raises BadInput for a statement that is not a query, that Spark cannot parse, or that requests the history of an
    unknown table. Also raises what `tables.route` raises.
    """
    cut = tokens(sql)
    while cut and cut[-1].text == ";":
        cut.pop()
    if not cut or not (cut[0].is_word(*_READS) or cut[0].text == "("):
        raise BadInput(
            f"This statement does not begin as a query: {' '.join(token.text for token in cut[:4]) or 'it is empty'}",
            hint=f"write SELECT … FROM namespace.table FOR TAG 'name', or {TAG_FORM}",
        )
    # A comment that the statement does not contain. It marks what was a FOR TAG clause: Spark reads a version of digits
    # as a snapshot id, but a tag may have such a name.
    mark = next(mark for number in count() if (mark := f"/*for tag {number}*/") not in sql)
    text = _with_versions(sql[: cut[-1].end], cut, mark)
    plan = _parsed(spark, text)
    if as_of is not None:
        _require_plain(spark, plan, as_of)
    within = _Asked(spark, tables, as_of, mark, frozenset(_common_tables(spark, plan)))
    # A subquery may be found twice, but has one position.
    relations = list({(found.start, found.end): found for found in _relations(spark, plan)}.values())
    relations.sort(key=lambda relation: relation.start)
    if relations and relations[0].text is not None:
        # Spark may have substituted variables; positions refer to the text that it parsed.
        text = relations[0].text
    changes: list[tuple[int, int, str]] = []
    sources: list[Source] = []
    for relation in relations:
        put, source = within.resolved(text, relation)
        if put is not None:
            changes.append((relation.start, relation.end, put))
        if source is not None:
            sources.append(source)
    for start, end, put in sorted(changes, reverse=True):
        text = text[:start] + put + text[end:]
    return Query(sql, text.replace(mark, ""), tuple(sources))


def _with_versions(text: str, cut: Sequence[Token], mark: str) -> str:
    """Replace FOR TAG 'x' by VERSION AS OF 'x', with the mark."""
    parts: list[str] = []
    at = 0
    for before, first, second, third in zip(cut, cut[1:], cut[2:], cut[3:], strict=False):
        tag = first.is_word("FOR") and second.is_word("TAG") and third.kind in ("string", "quoted")
        if tag and before.kind in ("word", "quoted"):
            spelled = literal(value_of(third)) if third.kind == "quoted" else third.text
            parts += [text[at : first.start], f"VERSION AS OF {mark}{spelled}"]
            at = third.end
    return "".join([*parts, text[at:]])


def _parsed(spark: SparkSession, text: str) -> Any:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except (PySparkException, Py4JJavaError) as error:
        said = str(error)
        if "java.lang.StackOverflowError" in said:
            said = "it nests too deep"
        raise BadInput(
            f"Spark cannot parse the query: {' '.join(said.split())[:600]}",
            hint="fix it; a tag is read with FROM namespace.table FOR TAG 'name'",
        ) from error
    kinds = [_class(spark, kind) for kind in ("Command", "ParsedStatement")]
    for node in _nodes(spark, plan):
        if any(kind.isInstance(node) for kind in kinds):
            raise BadInput(
                f"The statement does more than read ({node.getClass().getSimpleName()})",
                hint="use a query, or run the statement in Spark",
            )
    return plan


def _class(spark: SparkSession, simple: str) -> Any:
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    return loader.loadClass(f"org.apache.spark.sql.catalyst.plans.logical.{simple}")


@dataclass(frozen=True)
class _Relation:
    """A table in the query: its name, the position of the name and its AS OF, and the requested state."""

    parts: tuple[str, ...]
    start: int
    name_end: int
    end: int
    text: str | None
    version: str | None = None
    timed: bool = False
    aliased: bool = False


def _relations(spark: SparkSession, plan: Any) -> Iterator[_Relation]:
    for node, parent in _family(spark, plan):
        kind = node.getClass().getSimpleName()
        if kind == "UnresolvedRelation":
            start, end, text = _place(node)
            yield _Relation(_parts(node), start, end, end, text, aliased=_aliased(parent))
        elif kind == "RelationTimeTravel" and node.relation().getClass().getSimpleName() == "UnresolvedRelation":
            start, name_end, text = _place(node.relation())
            version = node.version()
            yield _Relation(
                _parts(node.relation()),
                start,
                name_end,
                _place(node)[1],
                text,
                version=str(version.get()) if version.isDefined() else None,
                timed=bool(node.timestamp().isDefined()),
                aliased=_aliased(parent),
            )


def _aliased(parent: Any | None) -> bool:
    return parent is not None and parent.getClass().getSimpleName() in ("SubqueryAlias", "Sample")


def _place(node: Any) -> tuple[int, int, str | None]:
    origin = node.origin()
    text = origin.sqlText()
    return origin.startIndex().get(), origin.stopIndex().get() + 1, str(text.get()) if text.isDefined() else None


def _parts(relation: Any) -> tuple[str, ...]:
    return tuple(str(part) for part in _each(relation.multipartIdentifier()))


def _each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)


def _nodes(spark: SparkSession, plan: Any) -> Iterator[Any]:
    for node, _ in _family(spark, plan):
        yield node


def _family(spark: SparkSession, plan: Any) -> Iterator[tuple[Any, Any | None]]:
    """Yield every node of the plan with its parent, including those of subqueries and common table expressions."""
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    with_plan = loader.loadClass("org.apache.spark.sql.catalyst.expressions.PlanExpression")

    waiting: list[tuple[Any, Any | None]] = [(plan, None)]
    while waiting:
        node, parent = waiting.pop()
        yield node, parent
        waiting += [(child, node) for child in _each(node.children())]
        waiting += [(child, node) for child in _each(node.innerChildren())]
        waiting += [(inner.plan(), node) for inner in _expressions(node) if with_plan.isInstance(inner)]


def _require_plain(spark: SparkSession, plan: Any, as_of: datetime) -> None:
    """Raise BadInput for expressions that may read tables that are not in the plan: names that are built when the query
    runs, and functions written in SQL."""
    catalog: Any = spark._jsparkSession.sessionState().catalog()
    jvm: Any = spark._jvm
    for node in _nodes(spark, plan):
        for found in (node, *_expressions(node)):
            kind = found.getClass().getSimpleName()
            if kind in ("PlanWithUnresolvedIdentifier", "ExpressionWithUnresolvedIdentifier"):
                raise _not_then("IDENTIFIER(…)", as_of, "the name is built when the query runs")
            if kind in ("UnresolvedFunction", "UnresolvedTableValuedFunction"):
                named = found.nameParts() if kind == "UnresolvedFunction" else found.name()
                parts = [str(part) for part in _each(named)]
                identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(parts[-1])
                if len(parts) > 1 or (
                    catalog.isTemporaryFunction(identifier)
                    and str(catalog.lookupFunctionInfo(identifier).getClassName()).lower().startswith("sqlfunction")
                ):
                    raise _not_then(f"{'.'.join(parts)}(…)", as_of, "a function may read the current state of tables")


def _expressions(node: Any) -> Iterator[Any]:
    """Yield every expression of a node of the plan, including nested ones."""
    waiting = list(_each(node.expressions()))
    while waiting:
        expression = waiting.pop()
        yield expression
        waiting += _each(expression.children())


def _not_then(spelled: str, as_of: datetime, why: str) -> BadInput:
    return BadInput(
        f"{spelled} cannot be read as of {as_of.isoformat()}: {why}",
        hint="name a table of the live catalog with its namespace, add a FOR VERSION, TIMESTAMP "
        "or TAG to it, or omit as_of",
    )


def _common_tables(spark: SparkSession, plan: Any) -> Iterator[str]:
    """Yield the names of the query's common table expressions, in lower case."""
    for node in _nodes(spark, plan):
        if node.getClass().getSimpleName() == "UnresolvedWith":
            yield from (str(pair._1()).lower() for pair in _each(node.cteRelations()))


@dataclass(frozen=True)
class _Asked:
    """What is needed to resolve a query's relations. `common` are the names of its common table expressions."""

    spark: SparkSession
    tables: Tables
    as_of: datetime | None
    mark: str
    common: frozenset[str]

    def resolved(self, text: str, relation: _Relation) -> tuple[str | None, Source | None]:
        """Return the replacement for the relation, and what it reads; None if it stays as it is.

        Raises BadInput if an instant is requested for something without history.
        """
        parts, tables = relation.parts, self.tables
        spelled, clause = text[relation.start : relation.name_end], text[relation.name_end : relation.end].strip()
        asked = relation.version is not None or relation.timed
        if len(parts) == 1:
            if asked:
                raise BadInput(
                    f"Which table is {spelled}? It has no namespace",
                    hint=f"write FROM namespace.{spelled} {self._as_written(clause)}",
                )
            if parts[0].lower() in self.common:
                # Inside and outside its WITH, the name refers to the view or the table.
                if self.as_of is not None and self.spark.catalog.tableExists(name(parts[0])):
                    why = "a view or a table of the session's namespace has the common table's name"
                    self._require_now(parts[0], why)
            else:
                self._require_now(spelled, "it may be a session view, or a table of the session's namespace")
            return None, None
        if parts[0] == tables.cold:
            if not asked:
                self._require_now(spelled, "it is in the cold catalog, which has only archived snapshots")
            return None, None
        own = parts[1:] if parts[0] == tables.live and len(parts) > 2 else parts
        qualified = spelled if own is not parts else f"{name(tables.live)}.{spelled}"
        table, inside = _listed(tables.listed_as, own)
        if table is None and parts[0] in tables.named and len(parts) > 2:
            qualified = spelled
            table, inside = _listed(tables.named[parts[0]], parts[1:])
        if table is None:
            if not asked:
                self._require_now(spelled, "the live catalog has no such table")
            return None, None
        if inside is not None and inside.lower() not in TRAVELLING:
            if not asked:
                self._require_now(spelled, "it shows the current state, or belongs to another name")
            now = Source.of(f"{table}.{name(inside)}", tables.route(table, Selector()), clause)
            return f"{qualified} {clause}".rstrip(), now
        if not asked and self.as_of is None:
            return qualified, Source.of(_within(table, inside), tables.route(table, Selector()))
        return self._placed(relation, table, inside, qualified, clause)

    def _require_now(self, spelled: str, why: str) -> None:
        """Raise BadInput if the query requests an instant."""
        if self.as_of is not None:
            raise _not_then(spelled, self.as_of, why)

    def _placed(
        self, relation: _Relation, table: str, inside: str | None, qualified: str, clause: str
    ) -> tuple[str, Source]:
        version = relation.version
        by_name = version is not None and (self.mark in clause or not version.isdigit())
        if version is not None:
            selector = Selector(tag=version) if by_name else Selector(snapshot_id=int(version))
        else:
            selector = Selector(as_of=_instant(self.spark, clause) if relation.timed else self.as_of)
        route = self.tables.route(table, selector)
        # A name of digits would be read as an id. An instant is answered from a longer log than Spark has. A deleted
        # tag may have no such name any more.
        spelled = literal(route.ref) if route.ref and not route.ref.isdigit() else str(route.snapshot_id)
        said = self._as_written(clause) if clause or self.as_of is None else f"as of {self.as_of.isoformat()}"
        source = Source.of(_within(table, inside), route, said)
        return self._from_tier(relation, source, table, inside, qualified, spelled), source

    def _from_tier(
        self, relation: _Relation, source: Source, table: str, inside: str | None, qualified: str, version: str
    ) -> str:
        """Return the table at `version`, in the syntax of the tier that has it."""
        cold = source.cold_table
        if cold is None:
            return f"{qualified} VERSION AS OF {version}"
        alias = f" AS {name(parse(table).name)}" if cold != table and inside is None and not relation.aliased else ""
        return f"{_within(parse(cold).sql(self.tables.cold), inside)} VERSION AS OF {version}{alias}"

    def _as_written(self, clause: str) -> str:
        return clause.replace(f"VERSION AS OF {self.mark}", "FOR TAG ")


def _listed(listed_as: Callable[[Identifier], str | None], parts: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the table that a catalog lists under these parts, and what they name in it: one of Iceberg's metadata
    tables, or a branch, tag or snapshot."""
    table = listed_as(Identifier.of(parts))
    if table is None and len(parts) > 2:
        return listed_as(Identifier.of(parts[:-1])), parts[-1]
    return table, None


def _within(table: str, inside: str | None) -> str:
    return table if inside is None else f"{table}.{name(inside)}"


def _instant(spark: SparkSession, clause: str) -> datetime:
    """Return the instant of a TIMESTAMP AS OF clause in Spark's interpretation: in the session's time zone."""
    from pyspark.errors import PySparkException

    of = next(token for token in tokens(clause) if token.is_word("OF"))
    expression = clause[of.end :].strip()
    try:
        row = spark.sql(f"SELECT unix_millis(try_cast(({expression}) AS TIMESTAMP)) AS at").first()
    except PySparkException as error:
        raise BadInput(
            f"{expression} is not an instant: {' '.join(str(error).split())[:300]}",
            hint="write FOR TIMESTAMP AS OF '2026-01-31T00:00:00Z'",
        ) from error
    if row is None or row["at"] is None:
        raise BadInput(f"{expression} is not an instant", hint="write FOR TIMESTAMP AS OF '2026-01-31T00:00:00Z'")
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=row["at"])
