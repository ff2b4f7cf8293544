package headrace.bench;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A connection to the driver for one stream and one consumer group: a JSON line out, a JSON line (and bytes) back.
 *
 * <p>Not thread-safe. Responses are small and have a known form, so regular expressions parse them.
 */
public final class DriverClient implements AutoCloseable {
    private static final int RECEIVE_BYTES = 4 << 20;
    private static final Pattern ERROR = Pattern.compile("\"error\":\\s*\"((?:[^\"\\\\]|\\\\.)*)\"");
    private static final Pattern BYTES = Pattern.compile("\"bytes\":\\s*(\\d+)");

    private final Socket socket;
    private final DataInputStream in;
    private final OutputStream out;
    private final String about;
    private final String columns;

    /** Connects to the driver; rows have these columns, in this order. */
    public DriverClient(String address, String stream, String group, List<String> columns) throws IOException {
        int colon = address.lastIndexOf(':');
        socket = new Socket();
        socket.setReceiveBufferSize(RECEIVE_BYTES);
        socket.setTcpNoDelay(true);
        socket.connect(new InetSocketAddress(address.substring(0, colon), Integer.parseInt(address.substring(colon + 1))));
        in = new DataInputStream(new BufferedInputStream(socket.getInputStream(), 1 << 16));
        out = socket.getOutputStream();
        about = "\"stream\": \"" + stream + "\", \"group\": \"" + group + "\"";
        this.columns = "[\"" + String.join("\", \"", columns) + "\"]";
    }

    /** The number of rows produced and committed by this group, for each partition; a new group starts at the current end. */
    public record Status(long[] produced, long[] committed) {}

    public Status status() throws IOException {
        String answer = ask("status", ", \"from\": \"now\"");
        return new Status(numbers(answer, "produced"), numbers(answer, "committed"));
    }

    /** Returns rows [start, stop) of a partition as an Arrow IPC stream; they must have been produced. */
    public byte[] read(int partition, long start, long stop) throws IOException {
        String range = ", \"partition\": " + partition + ", \"start\": " + start + ", \"stop\": " + stop;
        String answer = ask("read", range + ", \"columns\": " + columns);
        Matcher size = BYTES.matcher(answer);
        if (!size.find()) {
            throw new IOException("the driver's answer to read has no bytes: " + answer);
        }
        byte[] found = new byte[Integer.parseInt(size.group(1))];
        in.readFully(found);
        return found;
    }

    /** Commits positions, one for each partition; the driver stops retaining the rows below them. */
    public void commit(long[] positions) throws IOException {
        ask("commit", ", \"positions\": " + Arrays.toString(positions));
    }

    private String ask(String request, String rest) throws IOException {
        out.write(("{\"request\": \"" + request + "\", " + about + rest + "}\n").getBytes(StandardCharsets.UTF_8));
        StringBuilder line = new StringBuilder();
        for (int c = in.read(); c != '\n'; c = in.read()) {
            if (c < 0) {
                throw new IOException("the driver closed the connection");
            }
            line.append((char) c);
        }
        Matcher error = ERROR.matcher(line);
        if (error.find()) {
            throw new IOException("the driver says: " + error.group(1));
        }
        return line.toString();
    }

    private static long[] numbers(String answer, String name) throws IOException {
        Matcher list = Pattern.compile("\"" + name + "\":\\s*\\[([^\\]]*)\\]").matcher(answer);
        if (!list.find()) {
            throw new IOException("the driver's answer has no '" + name + "': " + answer);
        }
        return Arrays.stream(list.group(1).split(",")).map(String::trim).filter(s -> !s.isEmpty()).mapToLong(Long::parseLong).toArray();
    }

    @Override
    public void close() throws IOException {
        socket.close();
    }
}
