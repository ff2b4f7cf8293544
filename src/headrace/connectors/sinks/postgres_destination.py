"""The connection of a Postgres sink: rows come by COPY into a temporary table, and from there into the table, with the mark.

The row of the mark is changed only from the value that this connection has read. A transaction of an earlier connection that is
still being committed holds the lock of that row: this one waits for it, and then changes nothing.
"""

from __future__ import annotations

import io

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from psycopg import sql

from headrace.connectors.row_text import encode_json_values
from headrace.connectors.secrets import resolve_reference
from headrace.connectors.sinks.postgres import MARKS_TABLE, PostgresSink
from headrace.errors import DestinationUnavailableError, SinkError

_MARKS = sql.Identifier(MARKS_TABLE)
_CONNECT_SECONDS = 10
_OPTIONS = "-c lock_timeout=30s -c idle_in_transaction_session_timeout=60s"
_ORDER = "headrace_order"  # of the rows of a batch, in the temporary table
_SETTLED = (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError, psycopg.NotSupportedError)


class PostgresDestination:
    """See `Destination`."""

    def __init__(self, sink: PostgresSink, writer: str) -> None:
        """Take the sink; the server is connected later."""
        self._sink, self._writer = sink, writer
        self._table = sql.Identifier(*sink.table.split("."))
        self._staging = sql.Identifier("headrace_" + writer.replace("-", "_"))
        self._connection: psycopg.Connection | None = None
        self._mark: int | None = None
        self._is_prepared = False

    def check_columns(self, schema: pa.Schema) -> None:
        """See `Destination`; every type has a form."""

    def read_mark(self) -> int | None:
        """See `Destination`."""
        password = resolve_reference("password", self._sink.password, DestinationUnavailableError) or None
        self._connection = psycopg.connect(
            self._sink.url, password=password, connect_timeout=_CONNECT_SECONDS, options=_OPTIONS, keepalives_idle=10
        )
        with self._connection.transaction():
            find = sql.SQL("SELECT to_regclass(%s)")
            if self._connection.execute(find, [MARKS_TABLE]).fetchone() == (None,):
                self._create_marks(self._connection)
            row = self._connection.execute(
                sql.SQL("SELECT batch FROM {} WHERE writer = %s").format(_MARKS), [self._writer]
            ).fetchone()
        self._mark = None if row is None else int(row[0])
        return self._mark

    def _create_marks(self, connection: psycopg.Connection) -> None:
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [MARKS_TABLE])
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} (writer TEXT PRIMARY KEY, batch BIGINT NOT NULL)").format(_MARKS)
        )

    def publish(self, batch: int, rows: pa.Table) -> None:
        """See `Destination`."""
        assert self._connection is not None
        try:
            with self._connection.transaction():
                self._move_mark(self._connection, batch)
                if not self._is_prepared:
                    self._prepare_tables(self._connection, rows.schema)
                self._copy_rows(self._connection, rows)
        except _SETTLED as error:
            raise SinkError(f"table '{self._sink.table}' refuses the rows", detail=str(error).strip()) from error
        self._mark, self._is_prepared = batch, True

    def _move_mark(self, connection: psycopg.Connection, batch: int) -> None:
        if self._mark is None:
            text = sql.SQL("INSERT INTO {} (batch, writer) VALUES (%s, %s) ON CONFLICT DO NOTHING").format(_MARKS)
            changed = connection.execute(text, [batch, self._writer]).rowcount
        else:
            text = sql.SQL("UPDATE {} SET batch = %s WHERE writer = %s AND batch = %s").format(_MARKS)
            changed = connection.execute(text, [batch, self._writer, self._mark]).rowcount
        if changed != 1:
            raise ConnectionError("another connection of this sink has published meanwhile")

    def _prepare_tables(self, connection: psycopg.Connection, schema: pa.Schema) -> None:
        columns = [sql.SQL("{} {}").format(sql.Identifier(f.name), sql.SQL(to_postgres_type(f.type))) for f in schema]
        key = sql.SQL(", ").join(map(sql.Identifier, self._sink.key))
        constraint = [sql.SQL("PRIMARY KEY ({})").format(key)] if self._sink.key else []
        create = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})")
        connection.execute(create.format(self._table, sql.SQL(", ").join([*columns, *constraint])))
        names = sql.SQL(", ").join(map(sql.Identifier, schema.names))
        stage = sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DELETE ROWS AS SELECT {} FROM {} WITH NO DATA")
        connection.execute(stage.format(self._staging, names, self._table))
        connection.execute(sql.SQL("ALTER TABLE {} ADD {} BIGSERIAL").format(self._staging, sql.Identifier(_ORDER)))

    def _copy_rows(self, connection: psycopg.Connection, rows: pa.Table) -> None:
        names = sql.SQL(", ").join(map(sql.Identifier, rows.column_names))
        target = self._staging if self._sink.key else self._table
        with (
            connection.cursor() as cursor,
            cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(target, names)) as copy,
        ):
            copy.write(encode_csv(rows))
        if self._sink.key:
            connection.execute(self._build_upsert(rows.column_names, names))

    def _build_upsert(self, columns: list[str], names: sql.Composed) -> sql.Composed:
        """Return the statement that moves the last row of each key from the temporary table to the table."""
        key = sql.SQL(", ").join(map(sql.Identifier, self._sink.key))
        set_one = sql.SQL("{0} = EXCLUDED.{0}")
        changed = [set_one.format(sql.Identifier(name)) for name in columns if name not in self._sink.key]
        action = sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(changed)) if changed else sql.SQL("NOTHING")
        text = "INSERT INTO {} ({}) SELECT DISTINCT ON ({}) {} FROM {} ORDER BY {}, {} DESC ON CONFLICT ({}) DO {}"
        order = sql.Identifier(_ORDER)
        return sql.SQL(text).format(self._table, names, key, names, self._staging, key, order, key, action)

    def close(self) -> None:
        """See `Destination`."""
        if self._connection is not None:
            self._connection.close()


def to_postgres_type(kind: pa.DataType) -> str:
    """Return the column type of a new table; values of nested types are stored as JSON."""
    if pa.types.is_decimal(kind):
        return f"NUMERIC({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMPTZ" if kind.tz else "TIMESTAMP"
    return _TYPES.get(kind, "JSONB")


_TYPES = {
    pa.bool_(): "BOOLEAN", pa.int8(): "SMALLINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER", pa.int64(): "BIGINT",
    pa.float32(): "REAL", pa.float64(): "DOUBLE PRECISION", pa.string(): "TEXT", pa.large_string(): "TEXT",
    pa.binary(): "BYTEA", pa.large_binary(): "BYTEA", pa.date32(): "DATE",
}  # fmt: skip


def encode_csv(rows: pa.Table) -> bytes:
    """Return rows as CSV for COPY: NULL is empty, texts are quoted, nested values are JSON."""
    columns = [_to_flat_column(column) for column in rows.columns]
    buffer = io.BytesIO()
    options = pa.csv.WriteOptions(include_header=False, quoting_style="needed")
    pa.csv.write_csv(pa.table(columns, names=rows.column_names), buffer, options)
    return buffer.getvalue()


def _to_flat_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.chunked_array([[None if value is None else "\\x" + value.hex() for value in column.to_pylist()]], pa.string())
    if pa.types.is_nested(kind):
        return pa.chunked_array([encode_json_values(column)], pa.string())
    if pa.types.is_timestamp(kind) and kind.tz:
        return pc.cast(column, pa.timestamp(kind.unit, "UTC"))
    return column
