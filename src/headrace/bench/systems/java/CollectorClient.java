package headrace.bench;

import java.io.IOException;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** The single connection of this process to the collector: lines of query, window end in microseconds, and row count. */
public final class CollectorClient {
    private static OutputStream open;

    private CollectorClient() {}

    /** Sends the result row counts of a query by window end; the lines of a call are written together. */
    public static void send(String address, String query, Map<Long, long[]> counts) throws IOException {
        StringBuilder lines = new StringBuilder();
        counts.forEach((end, rows) -> lines.append(query).append('\t').append(end).append('\t').append(rows[0]).append('\n'));
        synchronized (CollectorClient.class) {
            if (open == null) {
                int colon = address.lastIndexOf(':');
                Socket socket = new Socket(address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
                socket.setTcpNoDelay(true);
                open = socket.getOutputStream();
            }
            open.write(lines.toString().getBytes(StandardCharsets.UTF_8));
        }
    }
}
