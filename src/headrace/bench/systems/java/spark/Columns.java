package headrace.bench.spark;

import headrace.bench.ArrowBlock;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Converts Arrow columns to Spark's column vectors, with one copy per column. */
final class Columns {
    private Columns() {}

    static ColumnarBatch read(ArrowBlock block, StructType schema) {
        OnHeapColumnVector[] found = OnHeapColumnVector.allocateColumns(block.rows(), schema);
        int buffer = 0;
        for (int i = 0; i < found.length; i++) {
            StructField field = schema.fields()[i];
            fill(found[i], field, block, buffer);
            buffer += field.dataType().equals(DataTypes.StringType) ? 3 : 2;
        }
        return new ColumnarBatch(found, block.rows());
    }

    private static void fill(OnHeapColumnVector column, StructField field, ArrowBlock block, int buffer) {
        int rows = block.rows();
        int values = block.buffer(buffer + 1);
        switch (field.dataType().typeName()) {
            case "integer" -> column.putInts(0, rows, block.bytes(), values);
            case "long", "timestamp" -> column.putLongs(0, rows, block.bytes(), values);
            case "double" -> column.putDoubles(0, rows, block.bytes(), values);
            case "string" -> text(column, block, values, block.buffer(buffer + 2));
            default -> throw new IllegalArgumentException("the driver's rows have no columns of type " + field.dataType());
        }
    }

    private static void text(OnHeapColumnVector column, ArrowBlock block, int offsets, int data) {
        ByteBuffer bytes = ByteBuffer.wrap(block.bytes()).order(ByteOrder.LITTLE_ENDIAN);
        for (int i = 0; i < block.rows(); i++) {
            int start = bytes.getInt(offsets + 4 * i);
            column.putByteArray(i, block.bytes(), data + start, bytes.getInt(offsets + 4 * i + 4) - start);
        }
    }
}
