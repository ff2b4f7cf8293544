package headrace.bench.flink;

import headrace.bench.ArrowBlock;
import headrace.bench.DriverClient;
import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.source.reader.RecordsBySplits;
import org.apache.flink.connector.base.source.reader.RecordsWithSplitIds;
import org.apache.flink.connector.base.source.reader.SingleThreadMultiplexSourceReaderBase;
import org.apache.flink.connector.base.source.reader.splitreader.SplitReader;
import org.apache.flink.connector.base.source.reader.splitreader.SplitsChange;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.columnar.ColumnarRowData;

/**
 * Pulls the partitions of the driver, each a split, as Arrow batches; rows are views of the columns and are not copied.
 *
 * <p>Each reader has a thread that fetches while the task computes. Splits are assigned to subtasks by number. There are no
 * checkpoints, so each fetch commits the rows of earlier fetches.
 */
public final class DriverSource implements Source<RowData, DriverSource.Partition, Integer> {
    private static final long FETCH_ROWS = 1 << 13; // small, so that watermarks are not delayed by rows before them
    private static final long COMMIT_ROWS = 1 << 16;
    private static final long IDLE_MILLIS = 5;

    private final String address;
    private final String stream;
    private final String group;
    private final int partitions;
    private final Columns columns;

    public DriverSource(String address, String stream, String group, int partitions, Columns columns) {
        this.address = address;
        this.stream = stream;
        this.group = group;
        this.partitions = partitions;
        this.columns = columns;
    }

    /** A partition of the stream, by number. */
    public record Partition(int number) implements SourceSplit, Serializable {
        @Override
        public String splitId() {
            return Integer.toString(number);
        }
    }

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.CONTINUOUS_UNBOUNDED;
    }

    @Override
    public SplitEnumerator<Partition, Integer> createEnumerator(SplitEnumeratorContext<Partition> context) {
        return new Dealer(context, partitions);
    }

    @Override
    public SplitEnumerator<Partition, Integer> restoreEnumerator(SplitEnumeratorContext<Partition> context, Integer state) {
        return createEnumerator(context);
    }

    @Override
    public SimpleVersionedSerializer<Partition> getSplitSerializer() {
        return new Numbers<>(Partition::number, Partition::new);
    }

    @Override
    public SimpleVersionedSerializer<Integer> getEnumeratorCheckpointSerializer() {
        return new Numbers<>(i -> i, i -> i);
    }

    @Override
    public SourceReader<RowData, Partition> createReader(SourceReaderContext context) {
        return new Reader(context);
    }

    private final class Reader extends SingleThreadMultiplexSourceReaderBase<Columns.Batch, RowData, Partition, Partition> {
        Reader(SourceReaderContext context) {
            super(Fetcher::new, (batch, output, partition) -> {
                ColumnarRowData row = new ColumnarRowData(batch.columns());
                for (int i = 0; i < batch.rows(); i++) {
                    row.setRowId(i);
                    output.collect(row);
                }
            }, new Configuration(), context);
        }

        @Override
        protected void onSplitFinished(Map<String, Partition> finished) {}

        @Override
        protected Partition initializedState(Partition split) {
            return split;
        }

        @Override
        protected Partition toSplitType(String id, Partition state) {
            return state;
        }
    }

    private final class Fetcher implements SplitReader<Columns.Batch, Partition> {
        private final DriverClient client;
        private final long[] positions; // positions of other readers' partitions stay unchanged
        private final Set<Integer> mine = new HashSet<>();
        private long[] produced;
        private long uncommitted;

        Fetcher() {
            try {
                client = new DriverClient(address, stream, group, columns.names());
                DriverClient.Status status = client.status();
                produced = status.produced();
                positions = status.committed();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public RecordsWithSplitIds<Columns.Batch> fetch() throws IOException {
            Map<String, Collection<Columns.Batch>> found = new HashMap<>();
            if (mine.stream().anyMatch(partition -> produced[partition] < positions[partition] + FETCH_ROWS)) {
                produced = client.status().produced();
            }
            for (int partition : mine) {
                long start = positions[partition];
                long stop = Math.min(produced[partition], start + FETCH_ROWS);
                if (start < stop) {
                    List<ArrowBlock> blocks = ArrowBlock.parse(client.read(partition, start, stop));
                    found.put(Integer.toString(partition), blocks.stream().map(columns::read).toList());
                    positions[partition] = stop;
                    uncommitted += stop - start;
                }
            }
            if (uncommitted > (found.isEmpty() ? 0 : COMMIT_ROWS)) {
                client.commit(positions);
                uncommitted = 0;
            }
            if (found.isEmpty()) {
                rest();
            }
            return new RecordsBySplits<>(found, Set.of());
        }

        private void rest() {
            try {
                Thread.sleep(IDLE_MILLIS);
            } catch (InterruptedException stop) {
                Thread.currentThread().interrupt();
            }
        }

        @Override
        public void handleSplitsChanges(SplitsChange<Partition> change) {
            change.splits().forEach(split -> mine.add(split.number()));
        }

        @Override
        public void wakeUp() {}

        @Override
        public void close() throws IOException {
            client.close();
        }
    }

    /** Assigns partitions to subtasks by number as they register. */
    private record Dealer(SplitEnumeratorContext<Partition> context, int partitions) implements SplitEnumerator<Partition, Integer> {
        @Override
        public void start() {}

        @Override
        public void handleSplitRequest(int subtask, String host) {}

        @Override
        public void addSplitsBack(List<Partition> splits, int subtask) {
            splits.forEach(split -> context.assignSplit(split, subtask));
        }

        @Override
        public void addReader(int subtask) {
            for (int i = subtask; i < partitions; i += context.currentParallelism()) {
                context.assignSplit(new Partition(i), subtask);
            }
        }

        @Override
        public Integer snapshotState(long checkpoint) {
            return 0;
        }

        @Override
        public void close() {}
    }

    /** Serializes a value that is a single number as decimal digits. */
    private record Numbers<T>(java.util.function.ToIntFunction<T> number, java.util.function.IntFunction<T> value)
            implements SimpleVersionedSerializer<T> {
        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(T object) {
            return Integer.toString(number.applyAsInt(object)).getBytes(StandardCharsets.UTF_8);
        }

        @Override
        public T deserialize(int version, byte[] bytes) {
            return value.apply(Integer.parseInt(new String(bytes, StandardCharsets.UTF_8)));
        }
    }
}
