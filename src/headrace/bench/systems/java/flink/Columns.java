package headrace.bench.flink;

import headrace.bench.ArrowBlock;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.List;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.data.columnar.vector.ColumnVector;
import org.apache.flink.table.data.columnar.vector.TimestampColumnVector;
import org.apache.flink.table.data.columnar.vector.VectorizedColumnBatch;
import org.apache.flink.table.data.columnar.vector.heap.HeapBytesVector;
import org.apache.flink.table.data.columnar.vector.heap.HeapDoubleVector;
import org.apache.flink.table.data.columnar.vector.heap.HeapIntVector;
import org.apache.flink.table.data.columnar.vector.heap.HeapLongVector;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.LogicalTypeRoot;
import org.apache.flink.table.types.logical.RowType;

/** Converts Arrow columns to Flink's column vectors, with one copy per column. */
public record Columns(List<String> names, LogicalTypeRoot[] types) implements Serializable {
    /** A batch of columns and its number of rows. */
    public record Batch(VectorizedColumnBatch columns, int rows) {}

    static Columns of(RowType row) {
        LogicalTypeRoot[] types = row.getChildren().stream().map(LogicalType::getTypeRoot).toArray(LogicalTypeRoot[]::new);
        return new Columns(row.getFieldNames(), types);
    }

    Batch read(ArrowBlock block) {
        ColumnVector[] found = new ColumnVector[types.length];
        int buffer = 0;
        for (int i = 0; i < types.length; i++) {
            found[i] = column(types[i], block, buffer);
            buffer += types[i] == LogicalTypeRoot.VARCHAR ? 3 : 2;
        }
        VectorizedColumnBatch columns = new VectorizedColumnBatch(found);
        columns.setNumRows(block.rows());
        return new Batch(columns, block.rows());
    }

    private static ColumnVector column(LogicalTypeRoot type, ArrowBlock block, int buffer) {
        int rows = block.rows();
        ByteBuffer values = at(block, block.buffer(buffer + 1));
        switch (type) {
            case INTEGER -> {
                HeapIntVector found = new HeapIntVector(rows);
                values.asIntBuffer().get(found.vector, 0, rows);
                return found;
            }
            case BIGINT -> {
                HeapLongVector found = new HeapLongVector(rows);
                values.asLongBuffer().get(found.vector, 0, rows);
                return found;
            }
            case DOUBLE -> {
                HeapDoubleVector found = new HeapDoubleVector(rows);
                values.asDoubleBuffer().get(found.vector, 0, rows);
                return found;
            }
            case TIMESTAMP_WITHOUT_TIME_ZONE -> {
                long[] micros = new long[rows];
                values.asLongBuffer().get(micros, 0, rows);
                return new Times(micros);
            }
            case VARCHAR -> {
                return text(block, values, block.buffer(buffer + 2), rows);
            }
            default -> throw new IllegalArgumentException("the driver's rows have no columns of type " + type);
        }
    }

    private static ColumnVector text(ArrowBlock block, ByteBuffer offsets, int data, int rows) {
        HeapBytesVector found = new HeapBytesVector(rows);
        found.buffer = block.bytes(); // not modified after parsing
        for (int i = 0; i < rows; i++) {
            int start = offsets.getInt(offsets.position() + 4 * i);
            found.start[i] = data + start;
            found.length[i] = offsets.getInt(offsets.position() + 4 * i + 4) - start;
        }
        return found;
    }

    private static ByteBuffer at(ArrowBlock block, int position) {
        return ByteBuffer.wrap(block.bytes()).order(ByteOrder.LITTLE_ENDIAN).position(position);
    }

    private record Times(long[] micros) implements TimestampColumnVector {
        @Override
        public TimestampData getTimestamp(int row, int precision) {
            return TimestampData.fromEpochMillis(Math.floorDiv(micros[row], 1000L), (int) Math.floorMod(micros[row], 1000L) * 1000);
        }

        @Override
        public boolean isNullAt(int row) {
            return false;
        }
    }
}
