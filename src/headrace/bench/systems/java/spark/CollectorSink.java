package headrace.bench.spark;

import headrace.bench.CollectorClient;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Counts result rows by window end in the tasks, and sends the counts to the collector when the micro-batch is complete.
 *
 * <p>Options: address, query. A result has a column window_end, or Spark's column window.
 */
public final class CollectorSink implements TableProvider {
    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return new StructType();
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new ResultTable();
    }

    private record ResultTable() implements SupportsWrite {
        @Override
        public String name() {
            return "headrace collector";
        }

        @Override
        public StructType schema() {
            return new StructType();
        }

        @Override
        public Set<TableCapability> capabilities() {
            return Set.of(TableCapability.STREAMING_WRITE, TableCapability.ACCEPT_ANY_SCHEMA);
        }

        @Override
        public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
            var options = info.options();
            StreamingWrite write = new Results(options.get("address"), options.get("query"), Counter.of(info.schema()));
            return new WriteBuilder() {
                @Override
                public Write build() {
                    return new Write() {
                        @Override
                        public StreamingWrite toStreaming() {
                            return write;
                        }
                    };
                }
            };
        }
    }

    /** The row counts of a task by window end. */
    private record Counts(HashMap<Long, long[]> rows) implements WriterCommitMessage {}

    private record Results(String address, String query, Counter counter) implements StreamingWrite {
        @Override
        public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
            return counter;
        }

        @Override
        public boolean useCommitCoordinator() {
            return false;
        }

        @Override
        public void commit(long epoch, WriterCommitMessage[] messages) {
            Map<Long, long[]> all = new TreeMap<>();
            for (WriterCommitMessage message : messages) {
                ((Counts) message).rows().forEach((end, rows) -> all.computeIfAbsent(end, key -> new long[1])[0] += rows[0]);
            }
            if (all.isEmpty()) {
                return;
            }
            try {
                CollectorClient.send(address, query, all);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public void abort(long epoch, WriterCommitMessage[] messages) {}
    }

    /** The position of the window end in a result row. */
    private record Counter(int column, boolean nested) implements StreamingDataWriterFactory {
        static Counter of(StructType schema) {
            boolean plain = Arrays.asList(schema.fieldNames()).contains("window_end");
            return new Counter(schema.fieldIndex(plain ? "window_end" : "window"), !plain);
        }

        @Override
        public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
            HashMap<Long, long[]> rows = new HashMap<>();
            return new DataWriter<>() {
                @Override
                public void write(InternalRow row) {
                    long end = nested ? row.getStruct(column, 2).getLong(1) : row.getLong(column);
                    rows.computeIfAbsent(end, key -> new long[1])[0]++;
                }

                @Override
                public WriterCommitMessage commit() {
                    return new Counts(rows);
                }

                @Override
                public void abort() {}

                @Override
                public void close() {}
            };
        }
    }
}
