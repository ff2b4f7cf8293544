package headrace.bench.flink;

import headrace.bench.CollectorClient;
import java.io.IOException;
import java.util.TreeMap;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.table.data.RowData;

/**
 * Counts result rows by window end, and sends the counts to the collector when the watermark that closed the window arrives.
 *
 * <p>The first column of a result is window_end.
 */
public record CollectorSink(String address, String query) implements Sink<RowData> {
    @Override
    public SinkWriter<RowData> createWriter(WriterInitContext context) throws IOException {
        return new Writer();
    }

    private final class Writer implements SinkWriter<RowData> {
        private final TreeMap<Long, long[]> counts = new TreeMap<>();
        private long lastEnd;
        private long[] last;

        @Override
        public void write(RowData row, Context context) {
            long end = row.getTimestamp(0, 3).getMillisecond() * 1000;
            if (last == null || end != lastEnd) {
                last = counts.computeIfAbsent(end, key -> new long[1]);
                lastEnd = end;
            }
            last[0]++;
        }

        @Override
        public void writeWatermark(Watermark watermark) throws IOException {
            flush(false);
        }

        @Override
        public void flush(boolean end) throws IOException {
            if (counts.isEmpty()) {
                return;
            }
            CollectorClient.send(address, query, counts);
            counts.clear();
            last = null;
        }

        @Override
        public void close() throws IOException {
            flush(true);
        }
    }
}
