package headrace.bench.spark;

import headrace.bench.ArrowBlock;
import headrace.bench.DriverClient;
import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * A Spark streaming source over a stream of the driver: offsets are row numbers, batches are columnar.
 *
 * <p>Options: address, stream, group, rows (maximum rows of a micro-batch), tasks (number of parallel tasks that read a batch).
 */
public final class DriverSource implements TableProvider {
    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        throw new UnsupportedOperationException("the schema must be given");
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new StreamTable(schema);
    }

    private record StreamTable(StructType schema) implements SupportsRead {
        @Override
        public String name() {
            return "headrace driver";
        }

        @Override
        public Set<TableCapability> capabilities() {
            return Set.of(TableCapability.MICRO_BATCH_READ);
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new StreamScan(schema, options);
        }
    }

    private static final class StreamScan implements ScanBuilder, SupportsPushDownRequiredColumns, Scan {
        private StructType schema;
        private final CaseInsensitiveStringMap options;

        StreamScan(StructType schema, CaseInsensitiveStringMap options) {
            this.schema = schema;
            this.options = options;
        }

        @Override
        public void pruneColumns(StructType required) {
            if (required.length() > 0) { // COUNT(*) needs no column, but the driver sends no rows without columns
                schema = required;
            }
        }

        @Override
        public Scan build() {
            return this;
        }

        @Override
        public StructType readSchema() {
            return schema;
        }

        @Override
        public MicroBatchStream toMicroBatchStream(String checkpoint) {
            return new Stream(new Place(options.get("address"), options.get("stream"), options.get("group")), schema,
                    options.getLong("rows", Long.MAX_VALUE), options.getInt("tasks", 1));
        }
    }

    /** The driver's address, the stream and the consumer group. */
    record Place(String address, String stream, String group) implements Serializable {
        DriverClient connect(StructType schema) {
            try {
                return new DriverClient(address, stream, group, List.of(schema.fieldNames()));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    private static final class Position extends Offset {
        private final long[] rows;

        Position(long[] rows) {
            this.rows = rows;
        }

        @Override
        public String json() {
            return Arrays.toString(rows);
        }
    }

    private record Range(int partition, long start, long stop) implements InputPartition {}

    private static final class Stream implements MicroBatchStream, SupportsAdmissionControl {
        private final Place place;
        private final StructType schema;
        private final long most;
        private final int tasks;
        private final DriverClient client;

        Stream(Place place, StructType schema, long most, int tasks) {
            this.place = place;
            this.schema = schema;
            this.most = most;
            this.tasks = tasks;
            client = place.connect(schema);
            status(); // registers the group: the driver retains rows for it from now on
        }

        @Override
        public Offset initialOffset() {
            return new Position(status().committed());
        }

        @Override
        public ReadLimit getDefaultReadLimit() {
            return ReadLimit.maxRows(most);
        }

        @Override
        public Offset latestOffset(Offset start, ReadLimit limit) {
            long[] from = ((Position) start).rows;
            long[] produced = status().produced();
            long each = limit instanceof ReadMaxRows rows ? Math.max(1, rows.maxRows() / from.length) : Long.MAX_VALUE;
            long[] stop = new long[from.length];
            Arrays.setAll(stop, i -> produced[i] - from[i] < each ? produced[i] : from[i] + each);
            return new Position(stop);
        }

        @Override
        public Offset latestOffset() {
            throw new UnsupportedOperationException("offsets are asked for with a limit");
        }

        @Override
        public Offset deserializeOffset(String json) {
            String inside = json.substring(1, json.length() - 1);
            return new Position(Arrays.stream(inside.split(",")).map(String::trim).mapToLong(Long::parseLong).toArray());
        }

        @Override
        public InputPartition[] planInputPartitions(Offset start, Offset end) {
            long[] from = ((Position) start).rows;
            long[] to = ((Position) end).rows;
            int pieces = Math.max(1, tasks / from.length);
            List<InputPartition> found = new ArrayList<>();
            for (int i = 0; i < from.length; i++) {
                for (int piece = 0; piece < pieces; piece++) {
                    long rows = to[i] - from[i];
                    long a = from[i] + rows * piece / pieces;
                    long b = from[i] + rows * (piece + 1) / pieces;
                    if (a < b) {
                        found.add(new Range(i, a, b));
                    }
                }
            }
            return found.toArray(InputPartition[]::new);
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
            return new Readers(place, schema);
        }

        @Override
        public void commit(Offset end) {
            try {
                client.commit(((Position) end).rows);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public void stop() {
            try {
                client.close();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        private DriverClient.Status status() {
            try {
                return client.status();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    private record Readers(Place place, StructType schema) implements PartitionReaderFactory {
        @Override
        public boolean supportColumnarReads(InputPartition partition) {
            return true;
        }

        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            throw new UnsupportedOperationException("rows are read in columns");
        }

        @Override
        public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
            return new Reader(place.connect(schema), schema, (Range) partition);
        }
    }

    /** Reads a range in blocks; allocates new columns for each, because Spark can still use those of earlier blocks. */
    private static final class Reader implements PartitionReader<ColumnarBatch> {
        private static final long READ_ROWS = 1 << 16;

        private final DriverClient client;
        private final StructType schema;
        private final Range range;
        private long at;
        private Iterator<ArrowBlock> blocks = List.<ArrowBlock>of().iterator();

        Reader(DriverClient client, StructType schema, Range range) {
            this.client = client;
            this.schema = schema;
            this.range = range;
            at = range.start();
        }

        @Override
        public boolean next() throws IOException {
            while (!blocks.hasNext() && at < range.stop()) {
                long stop = Math.min(range.stop(), at + READ_ROWS);
                blocks = ArrowBlock.parse(client.read(range.partition(), at, stop)).iterator();
                at = stop;
            }
            return blocks.hasNext();
        }

        @Override
        public ColumnarBatch get() {
            return Columns.read(blocks.next(), schema);
        }

        @Override
        public void close() throws IOException {
            client.close();
        }
    }
}
