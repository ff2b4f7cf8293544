package headrace.bench;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;

/**
 * A record batch of an Arrow IPC stream in the subset that the driver writes: flat, uncompressed, without NULLs.
 *
 * <p>Parses positions only: buffers are slices of the received bytes. Both engines bundle an Arrow library under different names;
 * this class works with both and avoids its copy.
 */
public final class ArrowBlock {
    private static final int CONTINUATION = -1;
    private static final int RECORD_BATCH = 3; // of the union MessageHeader
    private static final int HEADER_TYPE = 1, HEADER = 2, BODY_LENGTH = 3; // fields of Message
    private static final int LENGTH = 0, NODES = 1, BUFFERS = 2, COMPRESSION = 3; // fields of RecordBatch
    private static final int PAIR = 16; // bytes of a struct of two longs

    private final ByteBuffer bytes;
    private final int batch;
    private final int body;

    private ArrowBlock(ByteBuffer bytes, int batch, int body) {
        this.bytes = bytes;
        this.batch = batch;
        this.body = body;
        if (field(bytes, batch, COMPRESSION) != 0) {
            throw new IllegalArgumentException("compressed Arrow batches are not read");
        }
        int nodes = vector(NODES);
        for (int i = 0; i < bytes.getInt(nodes); i++) {
            if (bytes.getLong(nodes + 4 + i * PAIR + 8) != 0) {
                throw new IllegalArgumentException("column " + i + " has NULLs, which the driver never makes");
            }
        }
    }

    /** Returns the record batches of a stream in order; the caller must know the schema. */
    public static List<ArrowBlock> parse(byte[] stream) {
        ByteBuffer bytes = ByteBuffer.wrap(stream).order(ByteOrder.LITTLE_ENDIAN);
        List<ArrowBlock> found = new ArrayList<>();
        int at = 0;
        while (at + 8 <= stream.length && bytes.getInt(at) == CONTINUATION && bytes.getInt(at + 4) != 0) {
            int message = at + 8 + bytes.getInt(at + 8);
            int body = at + 8 + bytes.getInt(at + 4);
            if (bytes.get(field(bytes, message, HEADER_TYPE)) == RECORD_BATCH) {
                found.add(new ArrowBlock(bytes, follow(bytes, field(bytes, message, HEADER)), body));
            }
            int length = field(bytes, message, BODY_LENGTH);
            at = body + (length == 0 ? 0 : (int) bytes.getLong(length));
        }
        return found;
    }

    public int rows() {
        int length = field(bytes, batch, LENGTH);
        return length == 0 ? 0 : (int) bytes.getLong(length);
    }

    public byte[] bytes() {
        return bytes.array();
    }

    /** Returns the position of a buffer in {@link #bytes}; a column has two buffers, text has three; the first is for NULLs. */
    public int buffer(int number) {
        return body + (int) bytes.getLong(vector(BUFFERS) + 4 + number * PAIR);
    }

    private int vector(int field) {
        return follow(bytes, field(bytes, batch, field));
    }

    private static int follow(ByteBuffer bytes, int at) {
        return at + bytes.getInt(at);
    }

    /** Returns the position of a field of a FlatBuffers table; 0 if the field has its default value. */
    private static int field(ByteBuffer bytes, int table, int number) {
        int layout = table - bytes.getInt(table);
        int slot = 4 + 2 * number;
        int offset = slot < bytes.getShort(layout) ? bytes.getShort(layout + slot) : 0;
        return offset == 0 ? 0 : table + offset;
    }
}
